// What the driver hands over: the dashboard as it is committed, and what Prometheus answered.

export interface Series {
  metric: Record<string, string>;
  values: Array<[number, string]>; // unix seconds, the value as Prometheus writes it
}

export interface Target {
  refId: string;
  legendFormat?: string;
}

export interface Panel {
  type: string;
  title: string;
  description?: string;
  gridPos: { x: number; y: number; w: number; h: number };
  targets?: Target[];
  options?: any;
  fieldConfig?: any;
}

export interface Mark {
  name: string;
  iconColor: string;
}

export interface Recorded {
  dashboard: { title: string; panels: Panel[]; annotations: { list: Mark[] } };
  from_unix_s: number;
  to_unix_s: number;
  step_s: number;
  answers: Record<string, Record<string, Series[]>>; // panel, refId
  marks: Record<string, Array<[number, number]>>; // name of the mark, [begin, end] in unix seconds
}

declare global {
  interface Window {
    RECORDED: Recorded;
    LIGHT: boolean;
    drawn: boolean;
  }
}
