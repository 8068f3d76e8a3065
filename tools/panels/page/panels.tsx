// One panel, of a kind that Grafana publishes the component of.

import React from 'react';
import { DataFrame, dateTime, getDisplayValueAlignmentFactors, getFieldDisplayValues } from '@grafana/data';
import { BigValue, PanelChrome, TimeSeries, VizRepeater, useTheme2 } from '@grafana/ui';
import { applied, configOf, drawable } from './fields';
import { framesOf } from './frames';
import { marked } from './marks';
import { Panel, Recorded } from './recorded';

interface Inside {
  panel: Panel;
  recorded: Recorded;
  width: number;
  height: number;
}

export const DRAWN: Record<string, React.ComponentType<Inside>> = { timeseries: Curve, stat: BigNumber };

export function Drawn({ panel, recorded, width, height }: Inside) {
  const Kind = DRAWN[panel.type];
  return (
    <PanelChrome width={width} height={height} title={panel.title} description={panel.description} padding="md">
      {(innerWidth: number, innerHeight: number) => (
        <Kind panel={panel} recorded={recorded} width={innerWidth} height={innerHeight} />
      )}
    </PanelChrome>
  );
}

function Curve({ panel, recorded, width, height }: Inside) {
  const theme = useTheme2();
  const frames = React.useMemo<DataFrame[]>(
    () => drawable(applied(framesOf(panel, recorded), configOf(panel.fieldConfig, panel.type), theme)),
    [panel, recorded, theme]
  );
  const [from, to] = [recorded.from_unix_s, recorded.to_unix_s].map((at) => dateTime(at * 1000));
  if (!frames.length) {
    return <Word>No data</Word>;
  }
  return (
    <TimeSeries
      frames={frames}
      structureRev={1}
      timeRange={{ from, to, raw: { from, to } }}
      timeZone="browser"
      width={width}
      height={height}
      legend={panel.options.legend}
      options={panel.options}
    >
      {(config) => {
        marked(config, recorded, theme);
        return null;
      }}
    </TimeSeries>
  );
}

function BigNumber({ panel, recorded, width, height }: Inside) {
  const theme = useTheme2();
  const { options } = panel;
  const fieldConfig = configOf(panel.fieldConfig, panel.type);
  const data = applied(framesOf(panel, recorded), fieldConfig, theme);
  const values = () =>
    getFieldDisplayValues({
      fieldConfig,
      reduceOptions: options.reduceOptions,
      replaceVariables: (text) => text,
      theme,
      data,
      sparkline: options.graphMode !== 'none',
      timeZone: 'browser',
    });
  return (
    <VizRepeater
      getValues={values}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={({ value, alignmentFactors, width, height, count }) => (
        <BigValue
          value={value.display}
          count={count}
          colorMode={options.colorMode}
          graphMode={options.graphMode}
          justifyMode={options.justifyMode}
          textMode={options.textMode}
          wideLayout={options.wideLayout}
          alignmentFactors={alignmentFactors}
          width={width}
          height={height}
          theme={theme}
        />
      )}
      width={width}
      height={height}
      source={data}
      itemSpacing={3}
      renderCounter={0}
      autoGrid
      orientation={options.orientation}
    />
  );
}

function Word({ children }: { children: string }) {
  const { colors } = useTheme2();
  return <div style={{ height: '100%', display: 'grid', placeItems: 'center', color: colors.text.secondary }}>{children}</div>;
}
