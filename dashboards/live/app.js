// The live page: polls the server, keeps the chosen run's picture current, and says so when it cannot.
import { Series, get, runState } from './api.js';
import { Chart } from './chart.js';
import { EventList } from './events.js';
import { number, percent, short, toNumber } from './format.js';
import { HeatMap } from './heatmap.js';
import { ageLevel, showCoverage, showModes, showTiles } from './panels.js';

const kRefreshMs = 2000, kMaxBackoffMs = 30000, kMaxEvents = 200;
const kStateMetrics = ['loss', 'grad_norm', 'max_attention_logit', 'repeated_max_share'];
const $ = (id) => document.getElementById(id);

const charts = {
  loss: new Chart($('loss'), { label: 'Loss over steps' }),
  grad_norm: new Chart($('grad'), { label: 'Gradient norm over steps', log: true }),
  max_attention_logit: new Chart($('logit'), { label: 'Max attention logit by layer over steps', log: true }),
  spectral_norm_q: new Chart($('sigma'), { label: 'Spectral norm of W_q by layer over steps', log: true }),
};
// Anchored, so that a colour means the same in every run: 1 calm, 200 where the default policy alerts.
const logPosition = (v, top) => Math.log(Math.max(v, 1)) / Math.log(Math.max(top, 1000));
const heatLogit = new HeatMap($('heat-logit'), {
  label: 'Max attention logit', format: number, legend: short, position: logPosition,
  stops: (top) => [1, 10, 200, ...(top > 2000 ? [Math.max(top, 1000)] : [1000])],
});
// Square root: shares of a few per mille must differ visibly; half of all rows or more is the end.
const heatRepeated = new HeatMap($('heat-repeated'), {
  label: 'Share of rows with a repeated maximum', format: percent, legend: percent,
  position: (v, top) => Math.sqrt(Math.max(v, 0) / Math.max(top, 0.5)),
  stops: (top) => [0, 0.02, 0.2, 1].map((s) => s * Math.max(top, 0.5)),
});
const events = new EventList($('events'));

let run = null;        // name of the shown run
let series = {};       // by metric
let shown = null;      // {summary, stepsPerSecond, receivedAt} of the last good state
let failures = 0;
let timer = null;
let generation = 0;    // grows when another run is chosen; late answers for the former one are dropped

function wantedRun() {
  const match = /^#run=(.*)$/.exec(location.hash);
  try {
    return match ? decodeURIComponent(match[1]) : null;
  } catch {
    return null;
  }
}

function choose(name) {
  run = name;
  series = {};
  shown = null;
  ++generation;
  events.reset();
  for (const chart of Object.values(charts)) chart.update([], []);
  heatLogit.update(0, 0, [], 0, []);
  heatRepeated.update(0, 0, [], 0, []);
  document.title = name ? `${name} · trimtab` : 'trimtab';
}

function showRuns({ runs, version }) {
  $('version').textContent = version ? `trimtab ${version}` : 'trimtab';
  runs.sort((a, b) => (b.status === 'running') - (a.status === 'running') || b.last_seen_unix_seconds - a.last_seen_unix_seconds);
  const wanted = wantedRun();
  const names = runs.map((r) => r.run);
  if (wanted !== null && wanted !== run && names.includes(wanted)) choose(wanted);
  if (!names.includes(run)) choose(names[0] ?? null);
  const picker = $('run-picker');
  const texts = runs.map((r) => (r.status === 'running' ? r.run : `${r.run} (${r.status})`));
  if (texts.join('\n') !== [...picker.options].map((o) => o.text).join('\n')) {
    picker.replaceChildren(...runs.map((r, i) => new Option(texts[i], r.run)));
  }
  picker.disabled = runs.length === 0;
  $('picker').classList.toggle('none', runs.length === 0);
  if (document.activeElement !== picker) picker.value = run ?? '';
  $('empty').hidden = runs.length > 0;
  $('run-view').hidden = runs.length === 0;
}

function showHeat(map, metric, layers) {
  if (!metric || metric.shape.length !== 2) return map.update(0, 0, [], 0, []);
  return map.update(metric.shape[0], metric.shape[1], metric.values.map(toNumber), metric.step, layers.map((l) => l.name));
}

function showState(state) {
  shown = { summary: state.summary, stepsPerSecond: state.steps_per_second, receivedAt: performance.now() };
  showTiles($('tiles'), state);
  showModes($('modes'), $('modes-summary'), state);
  showCoverage($('coverage'), state);
  showHeat(heatLogit, state.metrics.max_attention_logit, state.layers);
  showHeat(heatRepeated, state.metrics.repeated_max_share, state.layers);
}

async function refreshRun() {
  const mine = generation, name = run;
  const state = await runState(name, kStateMetrics);
  if (mine !== generation) return;
  showState(state);
  const rank = state.ranks[0]?.rank ?? 0, incarnation = state.ranks[0]?.incarnation ?? null;
  for (const metric of Object.keys(charts)) series[metric] ??= new Series(name, metric, rank);
  const eventQuery = { run: name, max: kMaxEvents, ...(events.lastId === null ? {} : { after: events.lastId }) };
  const [fresh] = await Promise.all([
    get('/api/v1/events', eventQuery),
    ...Object.values(series).map((s) => s.refresh(incarnation)),
  ]);
  if (mine !== generation) return;
  events.add(fresh.events, fresh.last_id);
  for (const [metric, chart] of Object.entries(charts)) {
    chart.update(series[metric].curves, events.marks, series[metric].truncated ? 'cut: too long to read at once' : '');
  }
}

async function refresh() {
  clearTimeout(timer);
  try {
    showRuns(await get('/api/v1/runs'));
    if (run !== null) await refreshRun();
    failures = 0;
    $('banner').hidden = true;
  } catch (error) {
    ++failures;
    const wait = Math.min(kRefreshMs * 2 ** (failures - 1), kMaxBackoffMs);
    // A server that answers with an error is there; one that does not answer at all is away.
    const what = error.status ? `The server answers: ${error.message}` : 'The server does not answer';
    $('banner').textContent = `${what}. What you see is old. Trying again every ${Math.round(wait / 1000)} s.`;
    $('banner').hidden = false;
  }
  tick();
  const pause = failures === 0 ? kRefreshMs : Math.min(kRefreshMs * 2 ** (failures - 1), kMaxBackoffMs);
  if (!document.hidden) timer = setTimeout(refresh, pause);
}

// Once a second: the age of the last sample goes on while nothing comes.
function tick() {
  const pill = $('age');
  let state = { level: 'idle', text: failures > 0 ? 'server away' : 'no run' };
  if (shown) {
    const age = shown.summary.age_seconds;
    state = ageLevel(shown.summary, shown.stepsPerSecond, age === null ? null : age + (performance.now() - shown.receivedAt) / 1000);
  }
  if (failures > 0) state = { level: 'bad', text: `server away, ${state.text}` };
  pill.dataset.level = state.level;
  if (pill.textContent !== state.text) pill.textContent = state.text;
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  for (const chart of Object.values(charts)) chart.draw();
  heatLogit.draw();
  heatRepeated.draw();
}

function remembered() {
  try {
    return localStorage.getItem('theme');
  } catch {
    return null;
  }
}

$('start-command').textContent = ['-- python train.py', '--act -- torchrun --nproc-per-node 8 train.py']
  .map((rest) => `trimtab run --server ${location.hostname}:7070 ${rest}`).join('\n');
$('run-picker').addEventListener('change', (event) => {
  history.replaceState(null, '', `#run=${encodeURIComponent(event.target.value)}`);
  choose(event.target.value);
  refresh();
});
$('theme').addEventListener('click', () => {
  const dark = getComputedStyle(document.documentElement).colorScheme.startsWith('dark');
  setTheme(dark ? 'light' : 'dark');
  try {
    localStorage.setItem('theme', dark ? 'light' : 'dark');
  } catch { /* private window: not remembered */ }
});
window.addEventListener('hashchange', refresh);
document.addEventListener('visibilitychange', () => (document.hidden ? clearTimeout(timer) : refresh()));
window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => setTheme(null));
setTheme(remembered());
setInterval(tick, 1000);
refresh();
