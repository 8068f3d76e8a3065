"""What a page is about, and what to do about it. docs/PAGING.md is made from this table (`make pages`)."""

from __future__ import annotations

from collections.abc import Mapping

WHAT_TO_DO: Mapping[str, str] = {
    "divergence": "Warning: the run diverged. In mode act do nothing; in mode observe `sentinel rollback --to TAG"
    " --dry-run` shows the plan. Critical: sentinel stopped acting, or a restart does not run with what was"
    " decided: look up the sentence in docs/RUNBOOK.md, settle the incident by `sentinel rollback` or `sentinel"
    " undo`, and start `sentinel watch` again.",
    "approval": "Critical, mode approve: a plan waits, or expired. `sentinel approve INCIDENT` shows it and asks.",
    "watch_failing": "Warning, critical in an incident: Slurm, an action or a turn fails for [policy]"
    " confirm_within_s; again every hour. The sentence is the last error. Slurm: `sinfo`, `scontrol ping`. `the"
    " job may still write`: a job is COMPLETING, usually on a node that hangs. Sentinel tries again by itself.",
    "down": "Critical, warning in observe and approve: the job is gone and sentinel does not start it. Read its"
    " log; `sentinel status` gives the reason. Start it by hand, or set [policy] restart_on_crash.",
    "stalled": "Critical: the job is alive; journal and log are silent. Often NCCL. Save the ranks' stacks"
    " (`py-spy dump`), then stop the job. [policy] restart_on_hang lets sentinel do both.",
    "blind": "Warning: no readings for [policy] confirm_within_s. The filesystem of the state folder hangs or is"
    " not mounted, or the trainer's log can be read in two ways (docs/SOURCES.md#following-a-log). With"
    " [launcher] kind = 'elsewhere' also: nothing arrived for [judge] stalled_after_s; check whether the job"
    " ended or hangs.",
    "overlap": "Critical: an attempt made three steps after a newer one began: two jobs write the same"
    " checkpoints. Stop one at once; the sentence names both. `sentinel rollback --to TAG` goes back to a"
    " checkpoint from before the newer attempt. Causes: a job submitted by hand, an array without a throttle"
    " (--array=1-9 instead of --array=1-9%1), a node that lost its scheduler.",
    "unknown": "Critical, warning in observe: what the run writes contradicts what the scheduler or the machine"
    " says, or the job is another account's. Nothing is stopped, moved or started. Find out whether the run"
    " trains (`squeue`, `ps`), then see docs/RUNBOOK.md#whether-the-run-is-alive.",
    "paging": "Critical: a channel's folder can't be written. Make STATE_DIR/pages writable, or free space. The"
    " incident log has every event.",
    "bad_start": "Warning, critical where the newest attempt loaded another state than was saved: it does not"
    " continue the run, and the sentence names the likeliest fault (docs/STARTS.md). Stop the job, repair the fault"
    " and start it again; if the change was meant, do nothing.",
    "early_warning": "Warning: signals rise together, and a divergence may follow (docs/JUDGE.md#early-warning)."
    " [policy] warn says what is done; 'off' ends these pages.",
    "ended": "Critical: `sentinel watch` ended by an error outside of an incident, usually a file that the"
    " sentence names (docs/RUNBOOK.md). The run is unwatched until `sentinel watch` is started.",
    "test": "A test page. Do nothing.",
}
