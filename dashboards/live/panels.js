// Tiles, kernel modes and coverage: the parts of the page that are plain text.
import { element } from './events.js';
import { age, count, number, percent, toNumber } from './format.js';

const kModes = {
  native: ['N', 'the job\'s own kernel, unmeasured'], observe: ['O', 'the job\'s own kernel, measured'],
  stabilized: ['S', 'the stabilized kernel'], paper: ['P', 'the published β rule'], unknown: ['?', 'not reported'],
};

// Largest cell of a layered metric: {value, layer, head}; null when no cell has a sample (NaN).
export function largestCell(metric) {
  if (!metric) return null;
  const heads = metric.shape.length > 1 ? metric.shape[1] : 1;
  let best = null;
  metric.values.forEach((raw, i) => {
    const value = toNumber(raw);
    if (!Number.isNaN(value) && (best === null || value > best.value)) best = { value, layer: Math.floor(i / heads), head: i % heads };
  });
  return best;
}

const scalar = (state, name) => {
  const metric = state.metrics[name];
  return metric && metric.values.length > 0 ? toNumber(metric.values[0]) : null;
};

function tile(name, value, note = '', level = '') {
  const node = element('div', 'tile');
  if (level) node.dataset.level = level;
  node.append(element('span', 'name', name), element('span', 'value', value), element('span', 'sub', note));
  return node;
}

export function showTiles(host, state) {
  const { summary } = state;
  const loss = scalar(state, 'loss'), grad = scalar(state, 'grad_norm');
  const shown = (value) => (value === null ? '–' : number(value));
  const oddLevel = (value) => (value !== null && !Number.isFinite(value) ? 'bad' : '');
  const logit = largestCell(state.metrics.max_attention_logit);
  const repeated = largestCell(state.metrics.repeated_max_share);
  const ranksShort = summary.ranks_connected < summary.world_size && summary.status !== 'finished';
  const statusLevel = { running: 'ok', silent: 'warn', lost: 'bad' }[summary.status] ?? '';
  const rate = state.steps_per_second > 0 && summary.status === 'running' ? `${number(state.steps_per_second)} steps/s` : '';
  host.replaceChildren(
    tile('Status', summary.status, `${summary.ranks_connected} of ${summary.world_size} ranks`, ranksShort ? 'warn' : statusLevel),
    tile('Step', count(summary.last_step), rate),
    tile('Loss', shown(loss), '', oddLevel(loss)),
    tile('Gradient norm', shown(grad), '', oddLevel(grad)),
    tile('Max logit', logit ? number(logit.value) : '–', logit ? `layer ${logit.layer}, head ${logit.head}` : '', logit ? oddLevel(logit.value) : ''),
    tile('Repeated max', repeated ? percent(repeated.value) : '–', repeated ? `layer ${repeated.layer}, head ${repeated.head}` : ''),
    tile('Commands', summary.act ? 'obeyed' : 'not obeyed', summary.act ? 'started with --act' : 'observe only'),
  );
}

export function showModes(list, summaryNode, state) {
  const counts = new Map();
  const chips = state.modes.map((mode, layer) => {
    counts.set(mode, (counts.get(mode) ?? 0) + 1);
    const [letter, meaning] = kModes[mode] ?? kModes.unknown;
    const name = state.layers[layer]?.name ?? '';
    const chip = element('li', 'mode');
    chip.dataset.mode = mode;
    chip.title = `layer ${layer}${name ? ` (${name})` : ''}: ${mode}, ${meaning}`;
    chip.setAttribute('aria-label', chip.title);
    chip.append(element('span', 'layer', String(layer)), element('span', 'letter', letter));
    return chip;
  });
  list.replaceChildren(...chips);
  const parts = [...counts].map(([mode, n]) => `${n} ${mode} (${(kModes[mode] ?? kModes.unknown)[0]}: ${(kModes[mode] ?? kModes.unknown)[1]})`);
  summaryNode.textContent = parts.length > 0 ? parts.join(' · ') : 'No layer has reported its mode yet.';
}

export function showCoverage(host, state) {
  const { coverage, ranks } = state;
  const rows = [];
  const add = (name, text, level = '') => rows.push([name, text, level]);
  add('Hooked', coverage.hooked_ops.length > 0 ? coverage.hooked_ops.join(', ') : 'nothing', coverage.hooked_ops.length > 0 ? '' : 'warn');
  add('Calls', `${count(coverage.calls_hooked)} hooked, ${count(coverage.calls_recomputed)} recomputed`);
  for (const pass of coverage.passed_by) add('Passed by', `${count(pass.calls)} × ${pass.op}: ${pass.reason}`, 'warn');
  for (const error of coverage.errors) add('Error', error, 'bad');
  for (const note of coverage.notes) add('Note', note);
  if (coverage.last_sample_step > 0) add('Last sample', `step ${count(coverage.last_sample_step)}`);
  const rank = ranks[0];
  if (rank) {
    add('Host', `${rank.host || 'unknown'}, process ${rank.pid}${state.ranks_total > 1 ? `, and ${state.ranks_total - 1} more ranks` : ''}`);
    const versions = Object.entries(rank.versions).map(([name, version]) => `${name} ${version}`);
    if (versions.length > 0) add('Versions', versions.sort().join(', '));
    if (rank.emulated_storage) add('Fault injected', `attention computes in ${rank.emulated_storage} storage (TRIMTAB_EMULATE_STORAGE)`, 'warn');
  }
  host.replaceChildren(...rows.flatMap(([name, text, level]) => {
    const value = element('dd', '', text);
    if (level) value.dataset.level = level;
    return [element('dt', '', name), value];
  }));
}

// How old the last sample is, and whether that is worrying. Silence is never health.
export function ageLevel(summary, stepsPerSecond, ageSeconds) {
  if (ageSeconds === null) return { level: 'idle', text: 'no sample yet' };
  if (summary.status === 'finished') return { level: 'idle', text: `finished, last sample ${age(ageSeconds)}` };
  const patience = Math.max(10, stepsPerSecond > 0 ? 5 / stepsPerSecond : 10);
  const text = `last sample ${age(ageSeconds)}`;
  if (summary.status === 'lost') return { level: 'bad', text: `lost, ${text}` };
  if (summary.status === 'silent') return { level: 'bad', text: `silent, ${text}` };
  return { level: ageSeconds > patience ? 'warn' : 'ok', text };
}
