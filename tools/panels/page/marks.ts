// The dashboard's marks on a curve. Grafana's own drawing of them is not published: lines and stretches in its manner.

import { GrafanaTheme2, colorManipulator } from '@grafana/data';
import { REGION_FILL_ALPHA, UPlotConfigBuilder } from '@grafana/ui';
import { Recorded } from './recorded';

export function marked(config: UPlotConfigBuilder, recorded: Recorded, theme: GrafanaTheme2): void {
  config.addHook('draw', (plot: any) => {
    const { ctx, bbox } = plot;
    const scale = window.devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height + 6 * scale);
    ctx.clip();
    for (const { name, iconColor } of recorded.dashboard.annotations.list) {
      const colour = theme.visualization.getColorByName(iconColor);
      for (const [begin, end] of recorded.marks[name] ?? []) {
        const [left, right] = [begin, end].map((at) => Math.round(plot.valToPos(at * 1000, 'x', true)));
        ctx.fillStyle = colorManipulator.alpha(colour, REGION_FILL_ALPHA);
        ctx.fillRect(left, bbox.top, right - left, bbox.height);
        ctx.fillStyle = colour;
        ctx.fillRect(left - 2 * scale, bbox.top + bbox.height, right - left + 4 * scale, 4 * scale);
        ctx.strokeStyle = colour;
        ctx.lineWidth = scale;
        ctx.setLineDash([5 * scale, 5 * scale]);
        for (const x of new Set([left, right])) {
          ctx.beginPath();
          ctx.moveTo(x, bbox.top);
          ctx.lineTo(x, bbox.top + bbox.height);
          ctx.stroke();
        }
      }
    }
    ctx.restore();
  });
}
