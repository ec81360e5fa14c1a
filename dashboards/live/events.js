// The events list and the marks that events put on charts. All text goes through textContent: names may be hostile.
import { clock, count } from './format.js';

const kMaxShown = 200;

// Events that are drawn as vertical marks, with the colour's name in the style sheet.
const kMarks = {
  alert: { colour: 'warn' }, alert_resolved: { colour: 'muted', dashed: true },
  switch_applied: { colour: 'ok' }, switch_refused: { colour: 'bad', dashed: true },
  rollback_planned: { colour: 'accent', dashed: true }, rank_lost: { colour: 'bad' },
};

export function markOf(event) {
  const style = kMarks[event.kind];
  if (!style) return null;
  const colour = event.kind === 'alert' && event.severity === 'critical' ? 'bad' : style.colour;
  return { step: event.step, kind: event.kind.replaceAll('_', ' '), text: event.message, colour, dashed: style.dashed };
}

export class EventList {
  constructor(list) {
    this.list = list;
    this.reset();
  }

  reset() {
    this.list.replaceChildren();
    this.marks = [];
    this.lastId = null;
    this.showEmpty();
  }

  showEmpty() {
    const item = element('li', 'none', 'No events yet. Alerts, switches and ranks that come and go are listed here.');
    this.list.replaceChildren(item);
  }

  // `events` ascending, all new. Entries that the reader has opened stay as they are.
  add(events, lastId) {
    this.lastId = lastId;
    if (events.length === 0) return;
    this.list.querySelector('.none')?.remove();
    for (const event of events) {
      this.list.prepend(entry(event));
      const mark = markOf(event);
      if (mark) this.marks.push(mark);
    }
    while (this.list.children.length > kMaxShown) this.list.lastElementChild.remove();
    if (this.marks.length > kMaxShown) this.marks.splice(0, this.marks.length - kMaxShown);
  }
}

function entry(event) {
  const item = element('li', 'event');
  item.dataset.severity = event.severity;
  item.dataset.kind = event.kind;
  const details = document.createElement('details');
  const summary = document.createElement('summary');
  const time = element('time', 'when', clock(event.time_unix_seconds));
  time.dateTime = new Date(event.time_unix_seconds * 1000).toISOString();
  summary.append(time, element('span', 'kind', event.kind.replaceAll('_', ' ')),
    element('span', 'step', event.step ? `step ${count(event.step)}` : ''), element('span', 'message', event.message));
  details.append(summary, facts(event));
  if (event.evidence !== null) details.append(element('pre', 'evidence', JSON.stringify(event.evidence, null, 2)));
  item.append(details);
  return item;
}

function facts(event) {
  const list = element('dl', 'facts');
  const rows = { Severity: event.severity, Detector: event.detector, By: event.actor, Plan: event.plan_id, Event: String(event.id) };
  for (const [name, value] of Object.entries(rows)) {
    if (value) list.append(element('dt', '', name), element('dd', '', value));
  }
  return list;
}

export function element(tag, className = '', text = '') {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  return node;
}
