// A layer × head map on a canvas: layers down, heads across; the value of any cell by pointer, touch or arrow keys.
// NaN means that the cell has no sample; infinity is drawn in the colour of what must be seen.
import { cssColours, heat, heatText } from './colour.js';

const kMinRow = 3, kMaxRow = 30, kMaxHeight = 420;
const kPad = { left: 34, top: 18, right: 2, bottom: 2 };
const kFont = '11px system-ui, sans-serif';

export class HeatMap {
  // `position(value, largest)` → 0 … 1 on the colour ramp; `stops(largest)` are the values named under the legend, as
  // `legend` formats them; `format` is for cells and readout.
  constructor(host, { label, format, legend, position, stops }) {
    Object.assign(this, { host, label, format, legendFormat: legend, position, stops, layers: 0, heads: 0, values: [], cell: null, names: [] });
    this.canvas = document.createElement('canvas');
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute('role', 'img');
    this.readout = document.createElement('p');
    this.readout.className = 'readout';
    this.readout.setAttribute('aria-live', 'polite');
    this.legend = document.createElement('canvas');
    this.legend.className = 'legend';
    this.legend.setAttribute('aria-hidden', 'true');
    host.append(this.canvas, this.legend, this.readout);
    new ResizeObserver(() => this.draw()).observe(host);
    const point = (e) => this.pick(this.cellAt(e.offsetX, e.offsetY));
    this.canvas.addEventListener('pointermove', point);
    this.canvas.addEventListener('pointerdown', point);
    this.canvas.addEventListener('pointerleave', () => this.pick(null));
    this.canvas.addEventListener('keydown', (e) => this.key(e));
  }

  // `values` row-major [layers, heads] of numbers; `names` of the layers.
  update(layers, heads, values, step, names) {
    Object.assign(this, { layers, heads, values, step, names });
    if (this.cell && (this.cell.layer >= layers || this.cell.head >= heads)) this.cell = null;
    this.draw();
  }

  geometry() {
    const width = this.host.clientWidth;
    const room = (kMaxHeight - kPad.top - kPad.bottom) / Math.max(this.layers, 1);
    const row = Math.max(kMinRow, Math.min(kMaxRow, room));
    return { width, row, column: (width - kPad.left - kPad.right) / Math.max(this.heads, 1), height: kPad.top + kPad.bottom + row * this.layers };
  }

  cellAt(x, y) {
    const { row, column } = this.geometry();
    const layer = Math.floor((y - kPad.top) / row), head = Math.floor((x - kPad.left) / column);
    return layer >= 0 && layer < this.layers && head >= 0 && head < this.heads ? { layer, head } : null;
  }

  text(value) {
    return Number.isNaN(value) ? 'no sample' : this.format(value);
  }

  largest() {
    return this.values.reduce((m, v) => (Number.isFinite(v) ? Math.max(m, v) : m), -Infinity);
  }

  draw() {
    const ratio = window.devicePixelRatio || 1, colours = cssColours();
    const g = this.geometry();
    if (g.width === 0) return;
    const empty = this.values.length === 0;
    const height = empty ? 80 : g.height;
    this.canvas.width = Math.round(g.width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.height = `${height}px`;
    const ctx = this.canvas.getContext('2d');
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.font = kFont;
    ctx.fillStyle = colours.muted;
    this.legend.hidden = empty;
    if (empty) {
      ctx.textAlign = 'center';
      ctx.fillText('no samples yet', g.width / 2, height / 2);
      this.readout.textContent = '';
      this.canvas.setAttribute('aria-label', `${this.label}: no samples yet`);
      return;
    }
    this.drawCells(ctx, g, colours);
    this.drawLabels(ctx, g, colours);
    this.drawLegend(colours);
    this.describe();
  }

  drawCells(ctx, g, colours) {
    const top = this.largest(), gap = g.column >= 12 && g.row >= 8 ? 1 : 0;
    ctx.textAlign = 'center';
    ctx.textBaseline = 'middle';
    for (let layer = 0; layer < this.layers; ++layer) {
      for (let head = 0; head < this.heads; ++head) {
        const value = this.values[layer * this.heads + head];
        const x = kPad.left + head * g.column, y = kPad.top + layer * g.row;
        const t = Number.isFinite(value) ? this.position(value, top) : null;
        ctx.fillStyle = t !== null ? heat(t) : Number.isNaN(value) ? colours.line : colours.odd;
        ctx.fillRect(x, y, g.column - gap + (gap ? 0 : 0.5), g.row - gap + (gap ? 0 : 0.5));
        if (g.column < 46 || g.row < 15) continue;
        ctx.fillStyle = t !== null ? heatText(t) : Number.isNaN(value) ? colours.muted : '#ffffff';
        ctx.fillText(Number.isNaN(value) ? '–' : this.format(value), x + g.column / 2, y + g.row / 2);
      }
    }
    if (!this.cell) return;
    ctx.strokeStyle = colours.text;
    ctx.lineWidth = 2;
    ctx.strokeRect(kPad.left + this.cell.head * g.column, kPad.top + this.cell.layer * g.row, g.column, g.row);
  }

  drawLabels(ctx, g, colours) {
    ctx.fillStyle = colours.muted;
    ctx.textBaseline = 'middle';
    ctx.textAlign = 'right';
    const everyRow = spacing(14 / g.row), everyColumn = spacing(26 / g.column);
    for (let layer = 0; layer < this.layers; layer += everyRow) {
      ctx.fillText(`L${layer}`, kPad.left - 6, kPad.top + (layer + 0.5) * g.row);
    }
    ctx.textAlign = 'center';
    for (let head = 0; head < this.heads; head += everyColumn) {
      ctx.fillText(`H${head}`, Math.max(kPad.left + (head + 0.5) * g.column, kPad.left + 6), kPad.top / 2);
    }
  }

  drawLegend(colours) {
    const ratio = window.devicePixelRatio || 1, width = this.host.clientWidth, height = 26;
    this.legend.width = Math.round(width * ratio);
    this.legend.height = Math.round(height * ratio);
    const ctx = this.legend.getContext('2d');
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    const inner = width - kPad.left - kPad.right;
    for (let x = 0; x < inner; ++x) {
      ctx.fillStyle = heat(x / inner);
      ctx.fillRect(kPad.left + x, 2, 1.5, 7);
    }
    ctx.font = kFont;
    ctx.fillStyle = colours.muted;
    const top = this.largest();
    for (const value of this.stops(top)) {
      const text = this.legendFormat(value), half = ctx.measureText(text).width / 2;
      const x = kPad.left + this.position(value, top) * inner;
      ctx.fillRect(x - 0.5, 9, 1, 3);
      ctx.textAlign = 'center';
      ctx.fillText(text, Math.min(Math.max(x, half), width - half), 23);
    }
  }

  describe() {
    let worst = 0;
    this.values.forEach((v, i) => (worst = v > this.values[worst] || Number.isNaN(this.values[worst]) ? i : worst));
    const cell = this.cell ?? { layer: Math.floor(worst / this.heads), head: worst % this.heads };
    const value = this.values[cell.layer * this.heads + cell.head];
    const name = this.names[cell.layer] ? ` (${this.names[cell.layer]})` : '';
    this.readout.textContent = `${this.cell ? '' : 'largest: '}layer ${cell.layer}${name}, head ${cell.head}: ${this.text(value)} · step ${this.step}`;
    this.readout.dataset.value = String(value);
    this.canvas.setAttribute('aria-label', `${this.label}, ${this.layers} layers by ${this.heads} heads; ${this.readout.textContent}`);
  }

  pick(cell) {
    if (this.cell?.layer === cell?.layer && this.cell?.head === cell?.head) return;
    this.cell = cell;
    this.draw();
  }

  key(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (event.key === 'Escape') this.pick(null);
    if (!moves[event.key] || this.values.length === 0) return;
    event.preventDefault();
    const clamp = (v, n) => Math.min(Math.max(v, 0), n - 1);
    const from = this.cell ?? { layer: 0, head: 0 }, [dl, dh] = this.cell ? moves[event.key] : [0, 0];
    this.pick({ layer: clamp(from.layer + dl, this.layers), head: clamp(from.head + dh, this.heads) });
  }
}

// The next of 1, 2, 4, 8 … that is at least `x`.
const spacing = (x) => 2 ** Math.max(0, Math.ceil(Math.log2(x)));
