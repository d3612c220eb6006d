import { count, seconds } from "../format";
import { PHASES, spansOf, stepsWithin, type Choice, type Chunk, type Life, type Phase, type Span, type Step } from "./data";

const MOST_STEPS = 600;
const NUM_TICKS = 5;
/** More steps than that leave no room for gaps between them. */
const MOST_APART = 120;

interface Props {
  life: Life;
  choice: Choice;
  steps: Step[];
}

/** One row for each phase, over a common axis of seconds since the arrival; below them the engine's steps meanwhile. */
export function Waterfall({ life, choice, steps }: Props) {
  const last = choice.timeline.at(-1);
  const endS = Math.max(last?.to === "finished" ? last.at_s : life.took_s, 0.001);
  const spans = spansOf(choice, life.time_to_first_token_s, endS);
  const phases = (Object.keys(PHASES) as Phase[]).filter((phase) => spans.some((span) => span.phase === phase));
  return (
    <figure class="waterfall" aria-label={`Phases: ${spans.map(told).join("; ")}`}>
      <Axis endS={endS} />
      {phases.map((phase) => (
        <Row key={phase} name={PHASES[phase]} total={totalOf(spans, phase)}>
          {spans
            .filter((span) => span.phase === phase)
            .map((span) => (
              <Bar span={span} endS={endS} />
            ))}
        </Row>
      ))}
      <Chunks chunks={choice.prefill_chunks} endS={endS} />
      <Steps steps={stepsWithin(steps, life.age_s, endS)} endS={endS} />
    </figure>
  );
}

function told(span: Span): string {
  return `${PHASES[span.phase]} ${seconds(span.endS - span.startS)}`;
}

function totalOf(spans: Span[], phase: Phase): number {
  return spans.filter((span) => span.phase === phase).reduce((sum, span) => sum + span.endS - span.startS, 0);
}

interface RowProps {
  name: string;
  total: number | null;
  isDense?: boolean;
  children: preact.ComponentChildren;
}

function Row(props: RowProps) {
  return (
    <div class={`lane ${props.isDense ? "dense" : ""}`}>
      <span class="lane-name">{props.name}</span>
      <div class="lane-bars">{props.children}</div>
      <span class="lane-total">{props.total === null ? "" : seconds(props.total)}</span>
    </div>
  );
}

function Bar({ span, endS }: { span: Span; endS: number }) {
  const style = { left: `${(100 * span.startS) / endS}%`, width: `${(100 * (span.endS - span.startS)) / endS}%` };
  const title = `${PHASES[span.phase]}: ${seconds(span.endS - span.startS)}, from +${seconds(span.startS)} (${span.where})`;
  return <span class={`bar ${span.phase}`} style={style} title={title} />;
}

/** The prompt's parts, each in the step that computed it. */
function Chunks({ chunks, endS }: { chunks: Chunk[]; endS: number }) {
  if (!chunks.length) return null;
  const total = chunks.reduce((sum, chunk) => sum + chunk.took_s, 0);
  return (
    <Row name={chunks.length > 1 ? `${chunks.length} prompt chunks` : "prompt chunk"} total={total}>
      {chunks.map((chunk) => (
        <span
          class="bar chunk"
          style={{ left: `${(100 * chunk.at_s) / endS}%`, width: `${(100 * chunk.took_s) / endS}%` }}
          title={`tokens ${count(chunk.start)} to ${count(chunk.start + chunk.length)} of the prompt: ${seconds(chunk.took_s)}, from +${seconds(chunk.at_s)}`}
        />
      ))}
    </Row>
  );
}

function Axis({ endS }: { endS: number }) {
  const stepS = niceStep(endS / NUM_TICKS);
  const ticks = Array.from({ length: Math.floor(endS / stepS) + 1 }, (_, index) => index * stepS);
  return (
    <div class="lane axis" aria-hidden="true">
      <span class="lane-name" />
      <div class="lane-bars">
        {ticks
          .filter((at) => at <= endS * 0.97)
          .map((at) => (
            <span class="tick" style={{ left: `${(100 * at) / endS}%` }}>
              {at === 0 ? "0" : seconds(at)}
            </span>
          ))}
      </div>
      <span class="lane-total" />
    </div>
  );
}

/** The next of 1, 2, 5 times a power of ten. */
function niceStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least)!;
}

/** Where the server still remembers them. Those that computed parts of prompts, this one's or others', stand out. */
function Steps({ steps, endS }: { steps: (Step & { atS: number })[]; endS: number }) {
  if (!steps.length) return null;
  const shown = steps.slice(0, MOST_STEPS);
  const most = Math.max(...shown.map((step) => step.num_tokens), 1);
  const numPrefill = steps.filter((step) => step.num_prefills > 0).length;
  const note = steps.length > MOST_STEPS ? `; the first ${MOST_STEPS} are drawn` : "";
  return (
    <>
      <Row name="engine steps" total={null} isDense={shown.length > MOST_APART}>
        {shown.map((step) => (
          <span
            key={step.step}
            class={`step ${step.num_prefills ? "chunk" : ""}`}
            style={{
              left: `${(100 * Math.max(step.atS, 0)) / endS}%`,
              width: `${(100 * (step.took_s ?? 0)) / endS}%`,
              height: `${25 + 75 * Math.sqrt(step.num_tokens / most)}%`,
            }}
            title={`step ${step.step}: ${step.num_tokens} tokens of ${step.num_segments} sequences, ${step.num_prefills} prompt chunks, ${seconds(step.took_s)}`}
          />
        ))}
      </Row>
      <figcaption class="note">
        {`${steps.length} steps of the engine in this time, ${numPrefill} with prompt chunks (of any request)${note}. Height: tokens in the step.`}
      </figcaption>
    </>
  );
}
