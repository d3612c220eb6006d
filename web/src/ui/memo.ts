import { Component, h, type ComponentChild } from "preact";

/** A component that is drawn again only when one of its properties is another value. */
export function memo<P extends object>(draw: (props: P) => ComponentChild) {
  return class Memo extends Component<P> {
    override shouldComponentUpdate(next: P): boolean {
      const now = this.props as Record<string, unknown>;
      return Object.entries(next).some(([name, value]) => now[name] !== value);
    }

    override render() {
      return h(draw as any, this.props as any);
    }
  };
}
