import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { IconButton } from "./icon";

interface Props {
  title: string;
  isOpen: boolean;
  onClose: () => void;
  children: ComponentChildren;
  class?: string;
}

/** The browser's own modal dialog: focus stays in it, Escape closes it. */
export function Dialog({ title, isOpen, onClose, children, ...rest }: Props) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = element.current!;
    if (isOpen && !dialog.open) dialog.showModal();
    if (!isOpen && dialog.open) dialog.close();
  }, [isOpen]);
  return (
    <dialog
      ref={element}
      class={`dialog ${rest.class ?? ""}`}
      aria-label={title}
      onClose={onClose}
      onClick={(event) => event.target === element.current && onClose()}
    >
      {isOpen && (
        <div class="dialog-body">
          <header class="dialog-head">
            <h2>{title}</h2>
            <IconButton icon="close" label="Close" onClick={onClose} />
          </header>
          {children}
        </div>
      )}
    </dialog>
  );
}
