const PATHS = {
  plus: "M12 5v14M5 12h14",
  chat: "M5 5h14a2 2 0 0 1 2 2v8a2 2 0 0 1-2 2h-7l-5 4v-4H5a2 2 0 0 1-2-2V7a2 2 0 0 1 2-2z",
  list: "M4 6h9M4 12h16M4 18h6",
  chart: "M4 20V10M10 20V4M16 20v-8M21 20H3",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6L6 18",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v11H9zM5 15V4h10",
  edit: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  again: "M20 11a8 8 0 1 0-2.3 6.2M20 5v6h-6",
  branch: "M7 4v10M7 20a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM17 9a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM17 9c0 5-10 3-10 6",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  tune: "M4 8h9M17 8h3M4 16h3M11 16h9M15 6v4M9 14v4",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  down: "M12 5v14M6 13l6 6 6-6",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M4 12H2M22 12h-2M5 5l1.5 1.5M17.5 17.5L19 19M5 19l1.5-1.5M17.5 6.5L19 5",
  moon: "M20 14A8.5 8.5 0 0 1 10 4a8.5 8.5 0 1 0 10 10z",
  auto: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM12 3v18",
  upload: "M12 16V5M7 9l5-5 5 5M5 20h14",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  key: "M14.5 13a4.5 4.5 0 1 0-4.2-3L4 16.5V20h3.5v-2.5H10V15l1.8-1.8c.8.5 1.7-.2 2.7-.2z",
  warn: "M12 4l9 16H3zM12 10v4M12 17v.5",
  search: "M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM15.5 15.5L20 20",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

interface IconButton {
  icon: IconName;
  label: string;
  onClick: () => void;
  disabled?: boolean;
  class?: string;
}

/** A button that shows only a picture; its name is read out and shown as a tip. */
export function IconButton({ icon, label, ...rest }: IconButton) {
  return (
    <button type="button" title={label} aria-label={label} {...rest} class={`icon-button ${rest.class ?? ""}`}>
      <Icon name={icon} />
    </button>
  );
}
