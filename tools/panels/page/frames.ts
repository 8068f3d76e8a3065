// Prometheus's answers as Grafana's data frames, as its data source makes them.

import { DataFrame, FieldType } from '@grafana/data';
import { Panel, Recorded, Series } from './recorded';

export function framesOf(panel: Panel, recorded: Recorded): DataFrame[] {
  const answers = recorded.answers[panel.title];
  return (panel.targets ?? []).flatMap(({ refId, legendFormat }) =>
    answers[refId].map((series) => frame(refId, series, named(legendFormat, series), recorded.step_s))
  );
}

function frame(refId: string, series: Series, name: string, stepS: number): DataFrame {
  const times = series.values.map(([at]) => at * 1000);
  const values = series.values.map(([, value]) => number(value));
  return {
    refId,
    name,
    length: times.length,
    fields: [
      { name: 'Time', type: FieldType.time, config: { interval: stepS * 1000 }, values: times },
      { name: 'Value', type: FieldType.number, config: { displayNameFromDS: name }, labels: series.metric, values },
    ],
  };
}

function number(text: string): number {
  return text === '+Inf' ? Infinity : text === '-Inf' ? -Infinity : Number(text);
}

function named(format: string | undefined, { metric }: Series): string {
  if (format && format !== '__auto') {
    return format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => metric[label] ?? '');
  }
  const labels = Object.entries(metric).filter(([label]) => label !== '__name__');
  return `${metric.__name__ ?? ''}{${labels.map(([label, value]) => `${label}="${value}"`).join(', ')}}`;
}
