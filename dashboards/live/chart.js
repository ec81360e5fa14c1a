// A line chart on a canvas: many curves over steps, linear or logarithmic, with marks and a cursor.
import { cssColours, layerColour } from './colour.js';
import { count, logTicks, number, short, ticks } from './format.js';

const kHeight = 220;
const kPad = { left: 52, right: 14, top: 14, bottom: 26 };
const kFont = '11px system-ui, sans-serif';
const kMarkReachPx = 6;
const kLayersInKey = 12;

export class Chart {
  // `log`: a logarithmic y axis; values that are not above zero are left out there.
  constructor(host, { label, log = false }) {
    this.host = host;
    this.label = label;
    this.log = log;
    this.curves = [];
    this.marks = [];
    this.cursor = null;
    this.canvas = document.createElement('canvas');
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute('role', 'img');
    this.tip = document.createElement('div');
    this.tip.className = 'tip';
    this.tip.hidden = true;
    this.readout = document.createElement('p');
    this.readout.className = 'readout';
    this.key = document.createElement('p');
    this.key.className = 'key';
    this.key.setAttribute('aria-hidden', 'true');
    host.append(this.canvas, this.tip, this.readout, this.key);
    new ResizeObserver(() => this.draw()).observe(host);
    this.canvas.addEventListener('pointermove', (e) => this.point(e.offsetX));
    this.canvas.addEventListener('pointerdown', (e) => this.point(e.offsetX));
    this.canvas.addEventListener('pointerleave', () => this.point(null));
    this.canvas.addEventListener('blur', () => this.point(null));
    this.canvas.addEventListener('keydown', (e) => this.move(e));
  }

  // curves: [{incarnation, layer, steps, values}] in order; marks: [{step, kind, severity, text}].
  update(curves, marks, note = '') {
    this.curves = curves;
    this.marks = marks;
    this.note = note;
    this.draw();
  }

  drawable(value) {
    return Number.isFinite(value) && (!this.log || value > 0);
  }

  measure() {
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    for (const { steps, values } of this.curves) {
      for (let i = 0; i < steps.length; ++i) {
        x0 = Math.min(x0, steps[i]);
        x1 = Math.max(x1, steps[i]);
        if (!this.drawable(values[i])) continue;
        y0 = Math.min(y0, values[i]);
        y1 = Math.max(y1, values[i]);
      }
    }
    if (x0 > x1) return null;
    if (y0 > y1) [y0, y1] = this.log ? [1, 10] : [0, 1];
    if (this.log) {
      if (y1 / y0 < 4) [y0, y1] = [y0 / 2, y1 * 2];
      [y0, y1] = [y0 / 1.15, y1 * 1.15];
    } else {
      const margin = (y1 - y0) * 0.06 || Math.abs(y1) * 0.1 || 1;
      [y0, y1] = [y0 - margin, y1 + margin];
    }
    if (x0 === x1) x1 = x0 + 1;
    const width = this.host.clientWidth, inner = width - kPad.left - kPad.right;
    const place = this.log ? Math.log : (v) => v;
    return {
      x0, x1, y0, y1, width,
      x: (step) => kPad.left + ((step - x0) / (x1 - x0)) * inner,
      step: (px) => x0 + ((px - kPad.left) / inner) * (x1 - x0),
      y: (v) => kHeight - kPad.bottom - ((place(v) - place(y0)) / (place(y1) - place(y0))) * (kHeight - kPad.top - kPad.bottom),
    };
  }

  draw() {
    const width = this.host.clientWidth, ratio = window.devicePixelRatio || 1;
    if (width === 0) return;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(kHeight * ratio);
    const ctx = this.canvas.getContext('2d');
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, width, kHeight);
    ctx.font = kFont;
    const colours = cssColours(), scale = this.measure();
    this.scale = scale;
    if (!scale) {
      ctx.fillStyle = colours.muted;
      ctx.textAlign = 'center';
      ctx.fillText('no samples yet', width / 2, kHeight / 2);
      this.canvas.setAttribute('aria-label', `${this.label}: no samples yet`);
      this.readout.textContent = '';
      this.key.replaceChildren();
      return;
    }
    this.drawAxes(ctx, scale, colours);
    ctx.save();
    ctx.beginPath();
    ctx.rect(kPad.left, 0, width - kPad.left - kPad.right + 4, kHeight - kPad.bottom);
    ctx.clip();
    this.drawCurves(ctx, scale, colours);
    this.drawMarks(ctx, scale, colours);
    ctx.restore();
    this.drawCursor(ctx, scale, colours);
    this.describe();
  }

  drawAxes(ctx, scale, colours) {
    ctx.strokeStyle = colours.line;
    ctx.fillStyle = colours.muted;
    ctx.lineWidth = 1;
    ctx.textAlign = 'right';
    ctx.textBaseline = 'middle';
    for (const value of this.log ? logTicks(scale.y0, scale.y1, 5) : ticks(scale.y0, scale.y1, 5)) {
      const y = Math.round(scale.y(value)) + 0.5;
      ctx.beginPath();
      ctx.moveTo(kPad.left, y);
      ctx.lineTo(scale.width - kPad.right, y);
      ctx.stroke();
      ctx.fillText(short(value), kPad.left - 6, y);
    }
    ctx.textAlign = 'center';
    ctx.textBaseline = 'top';
    for (const step of ticks(scale.x0, scale.x1, Math.max(2, Math.floor(scale.width / 110)))) {
      if (!Number.isInteger(step)) continue;
      const half = ctx.measureText(count(step)).width / 2;
      const x = Math.min(scale.x(step), scale.width - half - 1);
      ctx.fillText(count(step), x, kHeight - kPad.bottom + 8);
    }
  }

  drawCurves(ctx, scale, colours) {
    const newest = this.curves.at(-1)?.incarnation;
    const layers = 1 + Math.max(0, ...this.curves.map((c) => c.layer ?? 0));
    ctx.lineJoin = 'round';
    for (const curve of this.curves) {
      ctx.strokeStyle = curve.layer === null ? colours.accent : layerColour(curve.layer, layers);
      ctx.globalAlpha = curve.incarnation === newest ? 1 : 0.35;
      ctx.lineWidth = layers > 24 ? 1 : 1.6;
      ctx.beginPath();
      let open = false;
      const odd = [];
      for (let i = 0; i < curve.steps.length; ++i) {
        const x = scale.x(curve.steps[i]);
        if (this.drawable(curve.values[i])) {
          if (open) ctx.lineTo(x, scale.y(curve.values[i]));
          else ctx.moveTo(x, scale.y(curve.values[i]));
          open = true;
        } else {
          open = false;
          if (!Number.isFinite(curve.values[i])) odd.push(x);
        }
      }
      ctx.stroke();
      if (curve.steps.length === 1 && this.drawable(curve.values[0])) {
        ctx.fillStyle = ctx.strokeStyle;
        ctx.fillRect(scale.x(curve.steps[0]) - 2, scale.y(curve.values[0]) - 2, 4, 4);
      }
      ctx.fillStyle = colours.odd;
      for (const x of odd) ctx.fillRect(x - 1, 2, 3, 7);
    }
    ctx.globalAlpha = 1;
  }

  drawMarks(ctx, scale, colours) {
    for (const mark of this.marks) {
      if (mark.step < scale.x0 || mark.step > scale.x1) continue;
      const x = Math.round(scale.x(mark.step)) + 0.5;
      ctx.strokeStyle = ctx.fillStyle = colours[mark.colour];
      ctx.setLineDash(mark.dashed ? [4, 3] : []);
      ctx.beginPath();
      ctx.moveTo(x, kPad.top - 4);
      ctx.lineTo(x, kHeight - kPad.bottom);
      ctx.stroke();
      ctx.setLineDash([]);
      ctx.beginPath();
      ctx.moveTo(x - 5, kPad.top - 12);
      ctx.lineTo(x + 5, kPad.top - 12);
      ctx.lineTo(x, kPad.top - 4);
      ctx.fill();
    }
  }

  drawCursor(ctx, scale, colours) {
    this.tip.hidden = true;
    if (this.cursor === null) return;
    const found = this.nearest(this.cursor);
    if (found.length === 0) return;
    const x = scale.x(found[0].step);
    ctx.strokeStyle = colours.muted;
    ctx.beginPath();
    ctx.moveTo(x, kPad.top);
    ctx.lineTo(x, kHeight - kPad.bottom);
    ctx.stroke();
    for (const { value, layer, layers } of found) {
      if (!this.drawable(value)) continue;
      ctx.fillStyle = layer === null ? colours.accent : layerColour(layer, layers);
      ctx.beginPath();
      ctx.arc(x, scale.y(value), 3, 0, 7);
      ctx.fill();
    }
    this.showTip(x, found, scale);
  }

  showTip(x, found, scale) {
    const lines = [`step ${count(found[0].step)}`];
    for (const mark of this.marks) {
      if (Math.abs(scale.x(mark.step) - x) <= kMarkReachPx) lines.push(`${mark.kind}: ${mark.text}`);
    }
    const shown = [...found].sort((a, b) => rank(b.value) - rank(a.value)).slice(0, 6);
    for (const { layer, value } of shown) lines.push(layer === null ? number(value) : `layer ${layer}: ${number(value)}`);
    if (found.length > shown.length) lines.push(`… ${found.length - shown.length} layers below`);
    this.tip.textContent = lines.join('\n');
    this.tip.hidden = false;
    const left = x + 12 + this.tip.offsetWidth > scale.width ? x - 12 - this.tip.offsetWidth : x + 12;
    this.tip.style.left = `${Math.max(0, left)}px`;
  }

  // The point of every curve of the newest life that is closest to `step`.
  nearest(step) {
    const newest = this.curves.at(-1)?.incarnation;
    const live = this.curves.filter((c) => c.incarnation === newest && c.steps.length > 0);
    const layers = 1 + Math.max(0, ...live.map((c) => c.layer ?? 0));
    return live.map(({ steps, values, layer }) => {
      let low = 0, high = steps.length - 1;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (steps[middle] < step) low = middle + 1;
        else high = middle;
      }
      if (low > 0 && step - steps[low - 1] < steps[low] - step) --low;
      return { step: steps[low], value: values[low], layer, layers };
    });
  }

  describe() {
    const last = this.nearest(Infinity);
    const top = last.reduce((a, b) => (rank(b.value) > rank(a.value) ? b : a), last[0]);
    const where = top.layer === null ? '' : `, largest in layer ${top.layer}`;
    this.readout.textContent = `now ${number(top.value)}${where}, step ${count(top.step)}${this.note ? ` · ${this.note}` : ''}`;
    this.canvas.setAttribute('aria-label', `${this.label}: ${this.readout.textContent}`);
    this.showKey(top.layer === null ? 0 : top.layers);
  }

  // Which colour is which layer; of many layers a few.
  showKey(layers) {
    const every = Math.max(1, Math.ceil(layers / kLayersInKey));
    const items = [];
    for (let layer = 0; layer < layers; layer += every) {
      const item = document.createElement('span');
      item.textContent = `L${layer}`;
      item.style.color = layerColour(layer, layers);
      items.push(item);
    }
    this.key.replaceChildren(...items);
  }

  point(px) {
    this.cursor = px === null || !this.scale ? null : this.scale.step(px);
    this.draw();
  }

  move(event) {
    if (!this.scale || !['ArrowLeft', 'ArrowRight', 'Home', 'End', 'Escape'].includes(event.key)) return;
    event.preventDefault();
    const { x0, x1 } = this.scale, hop = (x1 - x0) / 100;
    const at = this.cursor ?? x1;
    const moves = { ArrowLeft: at - hop, ArrowRight: at + hop, Home: x0, End: x1, Escape: null };
    this.cursor = moves[event.key] === null ? null : Math.min(Math.max(moves[event.key], x0), x1);
    this.draw();
  }
}

// A loss that is not a number counts as the largest: it is what must be seen.
const rank = (value) => (Number.isNaN(value) ? Infinity : value);
