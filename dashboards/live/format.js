// Numbers, ages and times for people. Non-finite values arrive from the API as strings.

export function toNumber(value) {
  if (typeof value === 'number') return value;
  if (value === 'NaN') return NaN;
  if (value === 'Infinity') return Infinity;
  if (value === '-Infinity') return -Infinity;
  return NaN;
}

// Four significant digits; thin exponents for the very large and very small.
export function number(value) {
  if (Number.isNaN(value)) return 'NaN';
  if (!Number.isFinite(value)) return value > 0 ? '∞' : '−∞';
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(2).replace('e+', 'e').replace('-', '−');
  const digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4;
  return value.toFixed(digits).replace('-', '−');
}

// For axes and legends: no trailing zeros.
export function short(value) {
  const size = Math.abs(value);
  if (size >= 1e5 || (size > 0 && size < 1e-3)) return value.toExponential(0).replace('e+', 'e').replace('-', '−');
  return String(Number(value.toPrecision(3))).replace('-', '−');
}

export function percent(value) {
  if (!Number.isFinite(value)) return number(value);
  const p = value * 100;
  return `${p === 0 ? '0' : p > 0 && p < 0.01 ? '<0.01' : p < 10 ? p.toFixed(2) : p.toFixed(1)} %`;
}

export function count(value) {
  return Math.round(value).toLocaleString('en-US').replaceAll(',', '\u202f');
}

export function age(seconds) {
  if (seconds < 1) return 'just now';
  if (seconds < 100) return `${Math.floor(seconds)} s ago`;
  if (seconds < 6000) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

export function clock(unixSeconds) {
  const date = new Date(unixSeconds * 1000);
  const two = (n) => String(n).padStart(2, '0');
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

// Round tick values, about `n` of them.
export function ticks(low, high, n) {
  const span = high - low || 1;
  const rough = span / Math.max(n, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) ?? power * 10;
  const result = [];
  for (let i = Math.ceil(low / step - 1e-9) + 0; i * step <= high + step * 1e-9; ++i) result.push(i * step);
  return result;
}

// Powers of ten inside [low, high]; with 2 and 5 between when there are few.
export function logTicks(low, high, n) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const between = high / low < 300 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil((last - first) / n));
  const result = [];
  for (let e = first; e <= last; e += every) {
    for (const m of between) {
      const value = m * 10 ** e;
      if (value >= low * 0.999 && value <= high * 1.001) result.push(value);
    }
  }
  return result;
}
