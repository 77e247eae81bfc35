// Numbers as text, as the command line writes them.

const KIB = 1024;
export const GIB = KIB ** 3;

export function gib(bytes, digits = 2) {
  if (Math.abs(bytes) >= 0.01 * GIB) return `${(bytes / GIB).toFixed(digits)} GiB`;
  if (Math.abs(bytes) >= 0.1 * KIB ** 2) return `${(bytes / KIB ** 2).toFixed(1)} MiB`;
  if (Math.abs(bytes) >= 0.1 * KIB) return `${(bytes / KIB).toFixed(1)} KiB`;
  return bytes ? `${bytes} bytes` : "0";
}

export function duration(seconds) {
  if (seconds < 1) return `${(1000 * seconds).toFixed(0)} ms`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(0)} min`;
  if (seconds < 48 * 3600) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} days`;
}

// A round number of hours on an axis.
export function hourTick(hours) {
  if (hours < 1) return `${Math.round(60 * hours)} min`;
  return hours < 48 ? `${hours} h` : `${hours / 24} d`;
}

// A count of parameters: 2.21 B.
export function count(number) {
  for (const [limit, suffix] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
    if (number >= 0.9995 * limit) return `${Number((number / limit).toPrecision(3))} ${suffix}`;
  }
  return String(number);
}

export function usd(amount) {
  if (amount >= 1000) return `$${Math.round(amount).toLocaleString("en-US")}`;
  return `$${amount >= 0.1 ? amount.toFixed(2) : amount.toPrecision(2)}`;
}

export function words(name) {
  return name.replaceAll("_", " ");
}

// About `count` round steps from 0 to `end`: 1, 2 or 5 times a power of ten.
export function roundTicks(end, count) {
  const rough = end / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const ticks = [];
  for (let place = 0; place * step <= end * 1.0001; place += 1) ticks.push(place * step);
  return ticks;
}

// 1, 2 and 5 times powers of ten from `low` to `high`.
export function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const factor of [1, 2, 5]) ticks.push(factor * 10 ** power);
  }
  return ticks.filter((tick) => tick >= low && tick <= high);
}
