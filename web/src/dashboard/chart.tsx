import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useEffect, useRef } from "preact/hooks";
import { isDark } from "../theme";
import type { Sample } from "./metrics";
import { column, type Reading } from "./history";

export interface Curve {
  label: string;
  reading: Reading;
  colour: string;
}

interface Props {
  title: string;
  curves: Curve[];
  all: Sample[];
  format: (value: number | null) => string;
  /** The upper end of the scale, and where it grows with the curves how far it reaches at least. */
  most?: number;
  least?: number;
}

const HEIGHT = 170;

function colourOf(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function options({ curves, format, most, least = 0.1 }: Props, width: number): uPlot.Options {
  const line = { stroke: colourOf("faint"), width: 1 };
  const axis = { stroke: colourOf("muted"), grid: line, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  return {
    width,
    height: HEIGHT,
    padding: [8, 28, 0, 0],
    cursor: { points: { size: 6 }, drag: { x: false, y: false } },
    legend: { show: false },
    scales: { y: { range: (_, __, max) => [0, most ?? Math.max(max * 1.15, least)] } },
    axes: [
      { ...axis, size: 30, values: (_, ticks) => ticks.map(clock), space: 90 },
      { ...axis, size: 58, values: (_, ticks) => ticks.map((value) => format(value)), space: 36 },
    ],
    series: [
      {},
      ...curves.map(({ label, colour }) => ({
        label,
        stroke: colourOf(colour),
        width: 2,
        points: { show: false },
        fill: curves.length === 1 ? `${colourOf(colour)}22` : undefined,
      })),
    ],
  };
}

function clock(atS: number): string {
  return new Date(atS * 1000).toLocaleTimeString("en-GB");
}

/** Curves over the time that the dashboard was open. The numbers of the last moment stand beside the title. */
export function Chart(props: Props) {
  const frame = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const dark = isDark.value;
  const data = [props.all.map((sample) => sample.atS), ...props.curves.map((curve) => column(curve.reading, props.all))];
  useEffect(() => {
    const holder = frame.current!;
    const made = new uPlot(options(props, holder.clientWidth), data as uPlot.AlignedData, holder);
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: holder.clientWidth, height: HEIGHT }));
    observer.observe(holder);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, [dark]);
  useEffect(() => plot.current?.setData(data as uPlot.AlignedData), [props.all]);
  const now = data.slice(1).map((values) => values.at(-1) ?? null);
  const told = props.curves.map((curve, index) => `${curve.label} ${props.format(now[index]!)}`).join(", ");
  return (
    <figure class="card chart" aria-label={`${props.title}: ${told}`}>
      <figcaption>
        <h2>{props.title}</h2>
        <ul class="legend">
          {props.curves.map((curve, index) => (
            <li>
              <span class={`swatch ${curve.colour}`} />
              {curve.label} <b>{props.format(now[index]!)}</b>
            </li>
          ))}
        </ul>
      </figcaption>
      <div ref={frame} aria-hidden="true" />
    </figure>
  );
}
