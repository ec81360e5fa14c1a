// Colours that canvases share with the style sheet, and two perceptual ramps.

export function cssColours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return {
    text: read('--text'), muted: read('--muted'), line: read('--line'), surface: read('--surface'),
    accent: read('--accent'), ok: read('--ok'), warn: read('--warn'), bad: read('--bad'), odd: read('--odd'),
  };
}

const kHeat = {
  dark: [[15, 23, 42], [30, 58, 110], [32, 110, 150], [46, 160, 140], [150, 190, 80], [245, 190, 66], [240, 110, 50], [220, 38, 60]],
  light: [[232, 240, 248], [186, 214, 236], [120, 184, 210], [84, 176, 150], [160, 196, 84], [240, 186, 60], [232, 110, 50], [190, 20, 50]],
};

export const isDark = () => getComputedStyle(document.documentElement).colorScheme.startsWith('dark');

function blend(stops, t) {
  const x = Math.min(Math.max(t, 0), 1) * (stops.length - 1);
  const i = Math.min(Math.floor(x), stops.length - 2);
  return stops[i].map((c, k) => Math.round(c + (stops[i + 1][k] - c) * (x - i)));
}

// t in 0 … 1, calm to alarming.
export function heat(t) {
  return `rgb(${blend(kHeat[isDark() ? 'dark' : 'light'], t).join(',')})`;
}

// Black or white, whichever reads better on heat(t).
export function heatText(t) {
  const [r, g, b] = blend(kHeat[isDark() ? 'dark' : 'light'], t);
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? '#0b0f14' : '#f4f7fa';
}

// One hue a layer, cool to warm with depth.
export function layerColour(layer, layers) {
  const t = layers > 1 ? layer / (layers - 1) : 0;
  return `hsl(${Math.round(200 + 300 * t * 0.62) % 360} ${isDark() ? '75% 64%' : '70% 42%'})`;
}
