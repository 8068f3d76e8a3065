#!/bin/sh
# A page to any service that apprise knows (Telegram, Matrix, Teams, ntfy …; pip install apprise):
#   [[paging.command]]
#   command = ["/etc/sentinel/apprise.sh", "/etc/sentinel/apprise.yaml"]
# The URLs, which hold the tokens, stand in that file of apprise's own. Exit code 0: every service took it.
exec apprise --config="$1" --title "$SENTINEL_PAGE_SEVERITY: $SENTINEL_PAGE_SUMMARY" \
    --body "run $SENTINEL_PAGE_RUN, $SENTINEL_PAGE_STATUS${SENTINEL_PAGE_INCIDENT:+, $SENTINEL_PAGE_INCIDENT}
$SENTINEL_PAGE_RUNBOOK"
