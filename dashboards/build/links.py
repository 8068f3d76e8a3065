"""Where a click leads: from a reading of a run to its triage dashboard at that moment, and to its incidents' pages."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard

__all__ = ["STEP", "TRIAGE", "to_incidents", "to_others", "to_triage"]

TRIAGE = "sentinel-spike-triage"
"""The uid of the triage dashboard; uids never change, since people's bookmarks hold them."""

_AROUND_MS = 3_600_000
"""An hour in view, the reading in its middle."""

_MOMENT = "&time=${__value.time}"
STEP = "&step=${__value.numeric}"
"""What sentinel's own page zooms to: the reading's time in milliseconds, or the reading itself where it is a step."""


def to_triage(run: str = "${__field.labels.run}", *, at: str = "${__value.time}") -> builders.DashboardLink:
    """The run's triage dashboard, around the moment of the reading."""
    moment = f"&time={at}&time.window={_AROUND_MS}" if at else "&${__url_time_range}"
    url = f"/d/{TRIAGE}?var-run={run}&var-datasource=${{datasource}}{moment}"
    return builders.DashboardLink("Triage this run, here").url(url)


def to_incidents(run: str = "${__field.labels.run}", *, there: str = _MOMENT) -> builders.DashboardLink:
    """The run's triage page, zoomed to the reading; a push that is given no address of sentinel's pages leaves it out.

    `there` is what the page is asked for besides the run: a moment, a step, or nothing.
    """
    url = f"${{incidents}}/?run={run}{there}"
    return builders.DashboardLink("The run's incidents").url(url).target_blank(True)


def to_others() -> builders.DashboardLink:
    """All dashboards of sentinel, in the head of each."""
    link = builders.DashboardLink("Sentinel").type(dashboard.DashboardLinkType.DASHBOARDS).tags(["sentinel"])
    return link.as_dropdown(True).include_vars(True).keep_time(True)
