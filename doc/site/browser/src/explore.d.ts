// What every page has from doc/site/static/explore.js.
declare function make(
  tag: string,
  attributes?: Record<string, string>,
  ...children: (string | Node)[]
): HTMLElement;
declare function paint(cell: HTMLElement, lane: number): void;
