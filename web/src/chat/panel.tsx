import { useState } from "preact/hooks";
import { defaultTemperature } from "../api";
import { setDefaults } from "../store";
import type { Conversation, Sampling } from "../tree";
import { Dialog } from "../ui/dialog";
import { say } from "../ui/toast";
import { chosenModel } from "./answer";

type NumberName = Exclude<keyof Sampling, "stop">;

const FIELDS: [NumberName, string, string, { min?: number; max?: number; step: number | "any" }][] = [
  ["temperature", "Temperature", "0 always takes the likeliest token", { min: 0, max: 5, step: "any" }],
  ["max_tokens", "Longest answer", "in tokens; empty: the rest of the context", { min: 1, step: 1 }],
  ["top_p", "Top p", "keeps the likeliest tokens up to this mass", { min: 0.001, max: 1, step: "any" }],
  ["top_k", "Top k", "keeps that many tokens; 0: all", { min: 0, step: 1 }],
  ["min_p", "Min p", "keeps tokens this likely beside the likeliest", { min: 0, max: 1, step: "any" }],
  ["repetition_penalty", "Repetition penalty", "above 1 against what was said", { min: 0.01, max: 10, step: "any" }],
  ["presence_penalty", "Presence penalty", "against tokens that were said", { min: -2, max: 2, step: "any" }],
  ["frequency_penalty", "Frequency penalty", "against tokens said often", { min: -2, max: 2, step: "any" }],
  ["seed", "Seed", "the same seed gives the same answer", { step: 1 }],
];

interface Props {
  conversation: Conversation;
  isOpen: boolean;
  onKeep: (conversation: Conversation) => void;
  onClose: () => void;
}

/** The system prompt and the sampling of a conversation. Empty fields leave the choice to the server, but for the temperature. */
export function Panel({ isOpen, ...rest }: Props) {
  return (
    <Dialog title="Settings of this conversation" class="wide" isOpen={isOpen} onClose={rest.onClose}>
      <Form {...rest} />
    </Dialog>
  );
}

function Form({ conversation, onKeep, onClose }: Omit<Props, "isOpen">) {
  const [system, setSystem] = useState(conversation.system);
  const [sampling, setSampling] = useState<Sampling>(conversation.sampling);
  const set = (name: keyof Sampling, value: unknown) => {
    setSampling(({ [name]: _, ...others }) => (value === undefined ? others : { ...others, [name]: value }));
  };
  const submit = (event: Event) => {
    event.preventDefault();
    const asDefault = (event as SubmitEvent).submitter?.dataset.default === "true";
    if (asDefault) setDefaults({ system, sampling });
    onKeep({ ...conversation, system, sampling });
    say(asDefault ? "Settings kept for new conversations too" : "Settings kept");
    onClose();
  };
  return (
    <form class="panel" onSubmit={submit}>
      <label class="field">
        <span>System prompt</span>
        <textarea rows={4} value={system} placeholder="You are …" onInput={(e) => setSystem(e.currentTarget.value)} />
      </label>
      <div class="fields">
        {FIELDS.map(([name, label, hint, bounds]) => (
          <label class="field" key={name}>
            <span>{label}</span>
            <input
              type="number"
              inputMode="decimal"
              placeholder={name === "temperature" ? `${defaultTemperature(chosenModel.value ?? undefined)}` : "default"}
              {...bounds}
              value={sampling[name] ?? ""}
              onInput={(e) => set(name, e.currentTarget.value === "" ? undefined : Number(e.currentTarget.value))}
            />
            <small>{hint}</small>
          </label>
        ))}
        <label class="field">
          <span>Stop texts</span>
          <input
            type="text"
            placeholder="none"
            value={(sampling.stop ?? []).join(", ")}
            onChange={(e) => set("stop", textsOf(e.currentTarget.value))}
          />
          <small>end the answer; up to four, between commas</small>
        </label>
      </div>
      <div class="row end sticky">
        <button
          type="button"
          class="quiet"
          onClick={() => {
            setSystem("");
            setSampling({});
          }}
        >
          Clear all
        </button>
        <button type="submit" data-default="true">
          Keep for new ones too
        </button>
        <button type="submit" class="primary">
          Keep
        </button>
      </div>
    </form>
  );
}

function textsOf(value: string): string[] | undefined {
  const texts = value
    .split(",")
    .map((text) => text.trim())
    .filter(Boolean);
  return texts.length ? texts : undefined;
}
