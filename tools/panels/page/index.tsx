// The dashboard's panels in its grid: 24 columns, rows of 30 pixels, 8 between two panels, as Grafana has it.

import React from 'react';
import { flushSync } from 'react-dom';
import { createRoot } from 'react-dom/client';
import { ThemeContext, createTheme } from '@grafana/data';
import { GlobalStyles, Icon, useTheme2 } from '@grafana/ui';
import { DRAWN, Drawn } from './panels';
import { Panel, Recorded } from './recorded';

const [COLUMNS, ROW, GAP, MARGIN] = [24, 30, 8, 16];

function Board({ recorded }: { recorded: Recorded }) {
  const theme = useTheme2();
  const column = (window.innerWidth - 2 * MARGIN + GAP) / COLUMNS;
  const { panels, left } = closedUp(recorded.dashboard.panels);
  const bottom = Math.max(...panels.map(({ gridPos: { y, h } }) => y + h));
  return (
    <div id="board" style={{ position: 'relative', height: (bottom + 1) * (ROW + GAP) + MARGIN }}>
      <style>{`body { background: ${theme.colors.background.canvas}; overflow: hidden }`}</style>
      {panels.map((panel) => {
        const { x, y, w, h } = panel.gridPos;
        const [width, height] = [w * column - GAP, h * (ROW + GAP) - GAP];
        const place = { left: MARGIN + x * column, top: MARGIN + y * (ROW + GAP), width, height };
        return (
          <div key={panel.title} style={{ position: 'absolute', ...place }}>
            {panel.type === 'row' ? (
              <Row title={panel.title} />
            ) : (
              <Drawn panel={panel} recorded={recorded} width={width} height={height} />
            )}
          </div>
        );
      })}
      <div style={{ position: 'absolute', left: MARGIN, bottom: MARGIN, color: theme.colors.text.secondary }}>
        Left out, since Grafana publishes no component for them: {left.join(', ')}.
      </div>
    </div>
  );
}

// The grid without the panels that can't be drawn; each of them is as wide as the board.
function closedUp(panels: Panel[]): { panels: Panel[]; left: string[] } {
  const gone = panels.filter(({ type }) => type !== 'row' && !(type in DRAWN));
  const above = (y: number) => gone.filter((one) => one.gridPos.y < y).reduce((sum, one) => sum + one.gridPos.h, 0);
  const kept = panels.filter((panel) => !gone.includes(panel));
  return {
    panels: kept.map((one) => ({ ...one, gridPos: { ...one.gridPos, y: one.gridPos.y - above(one.gridPos.y) } })),
    left: gone.map(({ title, type }) => `${title} (${type})`),
  };
}

function Row({ title }: { title: string }) {
  return (
    <div style={{ display: 'flex', alignItems: 'center', gap: 8, height: '100%', fontWeight: 500 }}>
      <Icon name="angle-down" /> {title}
    </div>
  );
}

async function draw(): Promise<void> {
  const theme = createTheme({ colors: { mode: window.LIGHT ? 'light' : 'dark' } });
  const root = createRoot(document.getElementById('root')!);
  const show = (inside: React.ReactNode) => (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      {inside}
    </ThemeContext.Provider>
  );
  flushSync(() => root.render(show(null))); // it names the fonts, and a canvas waits for none
  await Promise.all(['12px Inter', '500 14px Inter'].map((font) => document.fonts.load(font)));
  root.render(show(<Board recorded={window.RECORDED} />));
  window.drawn = true;
}

void draw();
