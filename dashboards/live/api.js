// The server's JSON API, and curves that are kept up to date by reading only what is new.
import { toNumber } from './format.js';

const kTimeoutMs = 8000;
const kPoints = 600;

export async function get(path, params = {}) {
  const query = new URLSearchParams(params).toString();
  const response = await fetch(query ? `${path}?${query}` : path, {
    cache: 'no-store',
    signal: AbortSignal.timeout(kTimeoutMs),
  });
  const body = await response.json().catch(() => ({}));
  if (!response.ok) {
    const error = new Error(body.error ?? `HTTP ${response.status}`);
    error.status = response.status;
    throw error;
  }
  return body;
}

export const runState = (run, metrics) =>
  get(`/api/v1/runs/${encodeURIComponent(run)}/state`, { metrics: metrics.join(',') });

// Curves of one metric of one run: [{incarnation, layer, steps, values}], values as numbers.
export class Series {
  constructor(run, metric, rank) {
    this.query = { run, metric, rank };
    this.curves = [];
    this.lastStep = null;
    this.incarnation = null;
    this.truncated = false;
  }

  // `incarnation`: the rank's present life; another one means that steps may have gone back.
  async refresh(incarnation) {
    const longest = Math.max(0, ...this.curves.map((c) => c.steps.length));
    const whole = this.lastStep === null || incarnation !== this.incarnation || longest > 2 * kPoints;
    const from = whole ? 0 : this.lastStep + 1;
    let body;
    try {
      body = await get('/api/v1/series', { ...this.query, from, points: kPoints });
    } catch (error) {
      if (error.status === 404) return;  // the run does not measure it (yet)
      throw error;
    }
    if (whole) this.curves = [];
    for (const part of body.series) this.append(part);
    this.incarnation = incarnation;
    this.truncated = body.truncated;
    if (body.last_step !== null) this.lastStep = body.last_step;
  }

  append(part) {
    let curve = this.curves.find((c) => c.incarnation === part.incarnation && c.layer === part.layer);
    if (!curve) {
      curve = { incarnation: part.incarnation, layer: part.layer, steps: [], values: [] };
      this.curves.push(curve);
    }
    curve.steps.push(...part.steps);
    curve.values.push(...part.values.map(toNumber));
  }
}
