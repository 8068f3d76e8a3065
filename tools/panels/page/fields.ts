// A panel's fieldConfig, applied by Grafana itself. What the JSON leaves out is what Grafana's time series starts from.

import {
  DataFrame,
  FieldColorModeId,
  FieldConfigOptionsRegistry,
  FieldConfigSource,
  FieldType,
  GrafanaTheme2,
  applyFieldOverrides,
  identityOverrideProcessor,
} from '@grafana/data';
import {
  AxisPlacement,
  GraphDrawStyle,
  GraphGradientMode,
  GraphThresholdsStyleMode,
  LineInterpolation,
  ScaleDistribution,
  StackingMode,
  VisibilityMode,
} from '@grafana/schema';

const CURVE = {
  drawStyle: GraphDrawStyle.Line,
  lineInterpolation: LineInterpolation.Linear,
  lineWidth: 1,
  lineStyle: { fill: 'solid' },
  fillOpacity: 0,
  gradientMode: GraphGradientMode.None,
  barAlignment: 0,
  barWidthFactor: 0.6,
  pointSize: 5,
  showPoints: VisibilityMode.Auto,
  spanNulls: false,
  stacking: { mode: StackingMode.None, group: 'A' },
  axisPlacement: AxisPlacement.Auto,
  axisGridShow: true,
  axisCenteredZero: false,
  axisBorderShow: false,
  scaleDistribution: { type: ScaleDistribution.Linear },
  hideFrom: { legend: false, tooltip: false, viz: false },
  thresholdsStyle: { mode: GraphThresholdsStyleMode.Off },
};
const STANDARD = ['color', 'unit', 'min', 'max', 'decimals', 'noValue', 'displayName', 'thresholds', 'mappings', 'links'];

export function configOf(given: any, kind: string): FieldConfigSource {
  const defaults = { ...given.defaults };
  defaults.thresholds = { ...(defaults.thresholds ?? { mode: 'absolute', steps: [{ value: null, color: 'green' }] }) };
  defaults.thresholds.steps = defaults.thresholds.steps.map((step: any) => ({ ...step, value: step.value ?? -Infinity }));
  if (kind === 'timeseries') {
    defaults.color ??= { mode: FieldColorModeId.PaletteClassic };
    defaults.custom = { ...CURVE, ...defaults.custom };
  }
  return { defaults, overrides: given.overrides };
}

export function applied(frames: DataFrame[], fieldConfig: FieldConfigSource, theme: GrafanaTheme2): DataFrame[] {
  const known = [...STANDARD.map((path) => item(path, false)), ...Object.keys(CURVE).map((path) => item(path, true))];
  unknown(fieldConfig, new Set(known.map(({ id }) => id)));
  return applyFieldOverrides({
    data: frames,
    fieldConfig,
    fieldConfigRegistry: new FieldConfigOptionsRegistry(() => known),
    replaceVariables: (text) => text,
    theme,
    timeZone: 'browser',
  });
}

// Only what is a number can be drawn: nan and the infinities are gaps, in Grafana's panel as well.
export function drawable(frames: DataFrame[]): DataFrame[] {
  return frames.map((frame) => ({
    ...frame,
    fields: frame.fields.map((field) =>
      field.type === FieldType.number
        ? { ...field, values: field.values.map((value) => (Number.isFinite(value) ? value : null)) }
        : field
    ),
  }));
}

function item(path: string, isCustom: boolean): any {
  const id = isCustom ? `custom.${path}` : path;
  return { id, path, name: path, isCustom, process: identityOverrideProcessor, shouldApply: () => true };
}

// What the JSON says and this page does not know would be left out in silence.
function unknown({ defaults, overrides }: FieldConfigSource, known: Set<string>): void {
  const said = [
    ...Object.keys(defaults).filter((path) => path !== 'custom'),
    ...Object.keys(defaults.custom ?? {}).map((path) => `custom.${path}`),
    ...overrides.flatMap((rule) => rule.properties.map(({ id }) => id)),
  ];
  const left = said.filter((id) => !known.has(id));
  if (left.length) {
    throw new Error(`not known to tools/panels/page/fields.ts: ${left}`);
  }
}
