{{/* What everything of this release is called. */}}
{{- define "sentinel.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What a selector may go by: it can't change in an upgrade. */}}
{{- define "sentinel.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "sentinel.labels" -}}
{{ include "sentinel.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "sentinel.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "sentinel.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "sentinel.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
A run as the templates need it, as JSON, or a sentence why it can't be watched like this. Argument: root, run.
stateDir: where its state is; claim: the claim that /state is, empty where the state lies on a filesystem of the run's.
*/}}
{{- define "sentinel.run" -}}
{{- $run := .run -}}
{{- $toml := fromToml $run.config -}}
{{- if hasKey $toml "Error" -}}
{{- fail (printf "runs: %s: its config is no TOML: %s" $run.name (get $toml "Error")) -}}
{{- end -}}
{{- $table := default dict $toml.run -}}
{{- range list "name" "checkpoints" -}}
{{- if not (get $table .) -}}
{{- fail (printf "runs: %s: [run] needs the key %q" $run.name .) -}}
{{- end -}}
{{- end -}}
{{- $source := default dict $toml.source -}}
{{- $launcher := default dict $toml.launcher -}}
{{- if eq (default "local" $launcher.kind) "local" -}}
{{- fail (printf "runs: %s: a pod sees none of the trainer's processes, and would call the run down: [launcher] kind should be \"elsewhere\", or \"slurm\" with its commands in the image" $run.name) -}}
{{- end -}}
{{- if and (eq (default "journal" $source.kind) "prometheus") $run.act -}}
{{- fail (printf "runs: %s: act: true, but with [source] kind = \"prometheus\" nothing of the run can be changed or proved: it is watched and paged for" $run.name) -}}
{{- end -}}
{{- $paths := dict "run.checkpoints" $table.checkpoints "run.state_dir" $table.state_dir "run.tensorboard" $table.tensorboard "source.path" $source.path "launcher.log" $launcher.log "launcher.script" $launcher.script -}}
{{- range $key, $path := $paths -}}
{{- if and $path (not (hasPrefix "/" $path)) -}}
{{- fail (printf "runs: %s: %s = %q should be an absolute path, of a volume that is mounted" $run.name $key $path) -}}
{{- end -}}
{{- end -}}
{{- $own := printf "/state/.sentinel/%s" $table.name -}}
{{- $dir := default $own $table.state_dir -}}
{{- $state := merge (dict) (default dict $run.state) .root.Values.state -}}
{{- $claim := "" -}}
{{- if or (eq $dir "/state") (hasPrefix "/state/" $dir) -}}
{{- if and (eq (default "journal" $source.kind) "journal") (not $state.existingClaim) -}}
{{- fail (printf "runs: %s: nobody else writes to the claim that %s would lie on, so no journal would ever come: put [run] state_dir on a volume that the trainer has too, or name one in state.existingClaim, or read its log ([source] kind = \"log\") or what Prometheus scraped ([source] kind = \"prometheus\")" $run.name $dir) -}}
{{- end -}}
{{- $claim = default (printf "%s-%s-state" (include "sentinel.fullname" .root) $run.name) $state.existingClaim -}}
{{- end -}}
{{- $poll := default 5 (default dict $toml.watch).poll_interval_s -}}
{{- dict "stateDir" $dir "claim" $claim "state" $state "hasMetrics" (not (empty $toml.metrics)) "notReadyAfter" (max (int .root.Values.probes.notReadyAfterSeconds) (mul 3 (int (ceil $poll)))) | toJson -}}
{{- end -}}

{{/* The [metrics] of a configuration that has none. Argument: metrics. */}}
{{- define "sentinel.metrics" -}}
[metrics]
address = "0.0.0.0"
port = {{ int .port }}
{{- if .tls.secretName }}
certificate = "/etc/sentinel/tls/tls.crt"
key = "/etc/sentinel/tls/tls.key"
{{- end }}
{{- if .token.secretName }}
token_file = "/etc/sentinel/token/{{ .token.key }}"
{{- end }}
{{ end -}}

{{/*
A configuration without the lines that are empty or a comment, as long as no string of several lines may hold them:
1,000 runs are then a few ConfigMaps. Argument: the text.
*/}}
{{- define "sentinel.short" -}}
{{- if or (contains "\"\"\"" .) (contains "'''" .) -}}
{{- . -}}
{{- else -}}
{{- regexReplaceAll "(?m)^[ \\t]*(#.*)?\\r?\\n" (printf "%s\n" (trimSuffix "\n" .)) "" -}}
{{- end -}}
{{- end -}}

{{/*
The pods, as JSON: the fleet's, and one for each run that has something of its own. suffix and labels: what it is called;
maps: the configurations, as ConfigMaps that Kubernetes takes (each holds a mebibyte); watch: what it is told; alive: the
file that its turns keep young; own: what is the run's alone.
*/}}
{{- define "sentinel.pods" -}}
{{- $root := . -}}
{{- $pods := list -}}
{{- $files := dict -}}
{{- $names := dict -}}
{{- $claim := "" -}}
{{- $notReadyAfter := int .Values.probes.notReadyAfterSeconds -}}
{{- range .Values.runs -}}
{{- $it := include "sentinel.run" (dict "root" $root "run" .) | fromJson -}}
{{- $text := .config -}}
{{- if and $it.hasMetrics (or $root.Values.metrics.tls.secretName $root.Values.metrics.token.secretName) -}}
{{- fail (printf "runs: %s: its config has a [metrics] of its own, which metrics.tls and metrics.token would not reach: leave one of them out" .name) -}}
{{- end -}}
{{- if and $root.Values.metrics.enabled (not $it.hasMetrics) -}}
{{- $table := regexReplaceAll "(?m)^[ \\t]*\\[metrics\\][ \\t]*(#.*)?$" .config "" -}}
{{- $text = printf "%s\n\n%s" (trimSuffix "\n" $table) (include "sentinel.metrics" $root.Values.metrics) -}}
{{- end -}}
{{- $file := printf "%s.toml" .name -}}
{{- $text = include "sentinel.short" $text -}}
{{- if hasKey $names .name -}}
{{- fail (printf "runs: %s is there twice" .name) -}}
{{- end -}}
{{- $_ := set $names .name true -}}
{{- if and $root.Values.fleet.enabled (not .act) (not (omit . "name" "config" "act")) -}}
{{- $_ := set $files $file $text -}}
{{- if $it.claim -}}
{{- if and (gt (int $root.Values.fleet.replicas) 1) (not $root.Values.state.existingClaim) (not (has "ReadWriteMany" $root.Values.state.accessModes)) -}}
{{- fail (printf "runs: %s: its state would lie on a claim that one node mounts, and fleet.replicas is %d: state.accessModes should have ReadWriteMany, or [run] state_dir lie on a volume that all pods mount" .name (int $root.Values.fleet.replicas)) -}}
{{- end -}}
{{- $claim = default (printf "%s-fleet-state" (include "sentinel.fullname" $root)) $root.Values.state.existingClaim -}}
{{- end -}}
{{- $notReadyAfter = max $notReadyAfter (int $it.notReadyAfter) -}}
{{- else -}}
{{- if and $root.Values.fleet.enabled (regexMatch "^fleet(-[0-9]+)?$" .name) -}}
{{- fail (printf "runs: %s: its own pod would be called as the fleet's are: choose another name" .name) -}}
{{- end -}}
{{- $watch := list "--run" (printf "/etc/sentinel/runs/%s" $file) -}}
{{- if not .act -}}
{{- $watch = append $watch "--observe" -}}
{{- end -}}
{{- $pods = append $pods (dict "suffix" .name "labels" (dict "sentinel/run" .name) "replicas" 1 "maps" (list (dict $file $text)) "watch" $watch "alive" (printf "%s/lock" $it.stateDir) "claim" $it.claim "state" $it.state "notReadyAfter" $it.notReadyAfter "own" .) -}}
{{- end -}}
{{- end -}}
{{- if $files -}}
{{- $replicas := int .Values.fleet.replicas -}}
{{- $watch := list "--all" "--config-dir" "/etc/sentinel/runs" "--fleet-dir" "/tmp/fleet" "--observe" "--workers" (toString (int .Values.fleet.workers)) -}}
{{- $most := int .Values.fleet.most -}}
{{- if and (gt $replicas 1) (not $most) -}}
{{- $most = div (add (len $files) (sub $replicas 2)) (sub $replicas 1) | int -}}
{{- end -}}
{{- if and $most (lt (mul $most $replicas) (len $files)) -}}
{{- fail (printf "fleet: %d replicas that watch at most %d runs each leave some of %d unwatched: raise fleet.replicas or fleet.most" $replicas $most (len $files)) -}}
{{- end -}}
{{- if $most -}}
{{- $watch = concat $watch (list "--most" (toString $most)) -}}
{{- end -}}
{{- $maps := list -}}
{{- $map := dict -}}
{{- $bytes := 0 -}}
{{- range $file, $text := $files -}}
{{- $size := add (len $file) (len $text) -}}
{{- if gt (int $size) 900000 -}}
{{- fail (printf "runs: %s: its config has %d bytes, and a ConfigMap holds a mebibyte" $file (len $text)) -}}
{{- end -}}
{{- if gt (int (add $bytes $size)) 900000 -}}
{{- $maps = append $maps $map -}}
{{- $map = dict -}}
{{- $bytes = 0 -}}
{{- end -}}
{{- $_ := set $map $file $text -}}
{{- $bytes = add $bytes $size -}}
{{- end -}}
{{- $maps = append $maps $map -}}
{{- $pods = append $pods (dict "suffix" "fleet" "labels" (dict "sentinel/fleet" "all") "replicas" $replicas "maps" $maps "watch" $watch "alive" "/tmp/fleet/alive" "claim" $claim "state" .Values.state "notReadyAfter" $notReadyAfter "own" dict) -}}
{{- end -}}
{{- $pods | toJson -}}
{{- end -}}

{{/*
Who the pod is. Only a claim of its own is given to its group: Kubernetes would do that to every file of every volume,
and the trainers' are not ours to change. Argument: root, pod.
*/}}
{{- define "sentinel.podSecurityContext" -}}
{{- $context := merge (dict) (default dict .pod.own.podSecurityContext) .root.Values.podSecurityContext -}}
{{- if and .pod.claim (not .pod.state.existingClaim) (not (hasKey $context "fsGroup")) -}}
{{- $context = merge $context (dict "fsGroup" $context.runAsGroup "fsGroupChangePolicy" "OnRootMismatch") -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}

{{/* The age of a file that turns renew (the run's lock, the fleet's own): what a probe asks. Argument: alive, seconds. */}}
{{- define "sentinel.probe" -}}
exec:
  command:
    - python
    - -c
    - "import os, sys, time; sys.exit(time.time() - os.stat(sys.argv[1]).st_mtime > float(sys.argv[2]))"
    - {{ .alive | quote }}
    - {{ .seconds | toString | quote }}
timeoutSeconds: 10
{{- end -}}
