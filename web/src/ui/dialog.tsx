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
  const numClosedHere = useRef(0);
  useEffect(() => {
    const dialog = element.current!;
    if (isOpen && !dialog.open) dialog.showModal();
    if (isOpen || !dialog.open) return;
    numClosedHere.current += 1;
    dialog.close();
  }, [isOpen]);
  // The event comes later: a dialog that was closed here may be wanted again by then.
  const closed = () => {
    if (numClosedHere.current > 0) numClosedHere.current -= 1;
    else onClose();
  };
  return (
    <dialog
      ref={element}
      class={`dialog ${rest.class ?? ""}`}
      aria-label={title}
      onClose={closed}
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
