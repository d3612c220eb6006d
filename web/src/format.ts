/** Numbers for people: units that fit, three digits that matter. */

export function seconds(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return "–";
  if (value === 0) return "0 s";
  if (value < 0.0995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  if (value < 9.995) return `${value.toFixed(2)} s`;
  if (value < 99.95) return `${value.toFixed(1)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
}

export function count(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return "–";
  if (value < 10_000) return Math.round(value).toLocaleString("en");
  return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);
}

export function rate(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return "–";
  return value > 0 && value < 10 ? value.toFixed(1) : count(value);
}

export function percent(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return "–";
  const hundredths = value * 100;
  return `${hundredths > 0 && hundredths < 9.95 ? hundredths.toFixed(1) : Math.round(hundredths)} %`;
}

export function plural(number: number, one: string, many = `${one}s`): string {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

export function ago(time: number, now = Date.now()): string {
  const passed = (now - time) / 1000;
  if (passed < 60) return "just now";
  if (passed < 3600) return `${Math.floor(passed / 60)} min ago`;
  if (passed < 86_400) return `${Math.floor(passed / 3600)} h ago`;
  return new Date(time).toLocaleDateString();
}
