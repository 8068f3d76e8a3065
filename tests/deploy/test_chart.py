"""The Helm chart: what it renders is taken by Kubernetes, watches by default, and may do as little as it needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sentinel.config import load_config
from sentinel.config.run_files import conflicts
from tests.deploy.chart import CHART, ROOT, VALUES, Objects, helm, of_kind, program, rendered, shape

pytestmark = pytest.mark.full

each_values = pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
OPERATORS = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
RULES = """groups:
  - name: sentinel
    rules:
      - alert: SentinelDiverged
        expr: max by (run) (sentinel_loss) > 1
        for: 5m
        annotations:
          summary: "{{ $labels.run }} at {{ $value }}"
"""


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A copy of the chart with rules and a dashboard whose braces are not helm's."""
    chart = tmp_path / "sentinel"
    shutil.copytree(CHART, chart)
    shutil.rmtree(chart / "files", ignore_errors=True)
    (chart / "files" / "rules").mkdir(parents=True)
    (chart / "files" / "dashboards").mkdir()
    (chart / "files" / "rules" / "alerts.yaml").write_text(RULES)
    (chart / "files" / "dashboards" / "Spike_triage.json").write_text('{"legendFormat": "{{attempt}}"}\n')
    return chart


def run_of(text: str, **more: Any) -> tuple[str, ...]:
    """`--set-json runs=[…]`: one run, with this configuration, in a pod of its own."""
    runs = json.dumps([{"name": "tr8", "config": text, **more}])
    return "--set-json", f"runs={runs}", "--set", "fleet.enabled=false"


WATCHED = '[run]\nname = "tr8"\ncheckpoints = "/data/c"\nstate_dir = "/data/s"\n[launcher]\nkind = "elsewhere"\n'


@each_values
def test_it_lints_strictly(values: Path) -> None:
    ran = helm("lint", "--strict", str(CHART), "--values", str(values))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "[WARNING]" not in ran.stdout


@each_values
@pytest.mark.parametrize("version", ["1.25.0", "1.37.0"])
def test_kubernetes_takes_what_it_renders(values: Path, version: str, tmp_path: Path) -> None:
    taken = [one for one in rendered("--values", str(values)) if one["kind"] not in OPERATORS]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(taken))
    command = [program("kubernetes-validate"), "--strict", "-k", version, str(tmp_path / "all.yaml")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (ran.stdout + ran.stderr).count("passed for resource") == len(taken)


def test_the_operators_resources_have_their_shape(filled: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install '.[dev]'")
    objects = rendered("--values", str(CHART / "ci" / "everything.yaml"), chart=filled)
    for kind in OPERATORS:
        (one,) = of_kind(objects, kind)
        jsonschema.Draft7Validator(shape(kind)).validate(one)
        misspelt = {**one, "spec": {**one["spec"], "selectors": {}}}
        assert list(jsonschema.Draft7Validator(shape(kind)).iter_errors(misspelt)), kind
    for one in rendered("--values", str(CHART / "ci" / "everything.yaml")):
        if one["kind"] in OPERATORS:
            jsonschema.Draft7Validator(shape(one["kind"])).validate(one)


def test_rules_and_dashboards_are_in_the_chart_as_they_are_beside_it() -> None:
    """`make chart` copies them."""
    for folder, pattern, inside in (("dashboards/rules", "*.yaml", "rules"), ("dashboards", "*.json", "dashboards")):
        beside = {path.name: path.read_bytes() for path in (ROOT / folder).glob(pattern)}
        assert {p.name: p.read_bytes() for p in (CHART / "files" / inside).glob("*")} == beside


def test_rules_and_dashboards_go_through_unchanged(filled: Path) -> None:
    objects = rendered("--set", "rules.enabled=true,dashboards.enabled=true", chart=filled)
    (rule,) = of_kind(objects, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(RULES)
    (board,) = of_kind(objects, "ConfigMap")
    assert board["metadata"]["name"] == "watch-sentinel-dashboard-spike-triage"
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(board["data"]["Spike_triage.json"]) == {"legendFormat": "{{attempt}}"}


def test_nothing_of_an_operator_or_of_grafana_is_there_unless_asked_for(filled: Path) -> None:
    kinds = {one["kind"] for one in rendered(*run_of(WATCHED), chart=filled)}
    assert kinds == {"ConfigMap", "Deployment", "NetworkPolicy", "Service", "ServiceAccount"}


def pods(objects: Objects) -> Iterator[dict[str, Any]]:
    yield from (one["spec"]["template"]["spec"] for one in of_kind(objects, "Deployment"))


@each_values
def test_no_rights_are_asked_for_and_no_token_is_mounted(values: Path) -> None:
    objects = rendered("--values", str(values))
    assert not {one["kind"] for one in objects} & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "Secret"}
    for account in (*pods(objects), *of_kind(objects, "ServiceAccount")):
        assert account["automountServiceAccountToken"] is False


def test_the_rights_of_kubectls_recipe_are_those_alone_and_for_runs_that_may_be_acted_on(tmp_path: Path) -> None:
    words = ("--values", str(CHART / "ci" / "replicas.yaml"), "--set", "kubectl.enabled=true")
    objects = rendered(*words)
    (role,), (binding,) = of_kind(objects, "Role"), of_kind(objects, "RoleBinding")
    rights = {f"{rule['apiGroups'][0]}/{rule['resources'][0]}": rule["verbs"] for rule in role["rules"]}
    assert all(len(rule["apiGroups"]) == len(rule["resources"]) == 1 for rule in role["rules"])
    assert rights == {
        "jobset.x-k8s.io/jobsets": ["get", "list", "create", "delete"],
        "/pods": ["list"],
        "/pods/log": ["get"],
    }
    (account,) = of_kind(objects, "ServiceAccount")
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("Role", role["metadata"]["name"])
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": role["metadata"]["namespace"]}
    ]
    tokens = {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]["automountServiceAccountToken"]
        for one in of_kind(objects, "Deployment")
    }
    assert tokens == {"watch-sentinel-fleet": False, "watch-sentinel-tr11": True}
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all([role, binding]))
    command = [program("kubernetes-validate"), "--strict", "-k", "1.31.0", str(tmp_path / "all.yaml")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, (ran.stdout + ran.stderr).count("passed for resource")) == (0, 2), ran.stdout + ran.stderr


@each_values
def test_its_pods_are_restricted_ones(values: Path) -> None:
    """What Kubernetes' pod security standard `restricted` asks for, and a root filesystem that is only read."""
    for pod in pods(rendered("--values", str(values))):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_only_a_claim_of_its_own_is_given_to_its_group() -> None:
    """fsGroup changes every file of every volume of the pod."""
    own, theirs = (rendered("--values", str(CHART / "ci" / name)) for name in ("closed.yaml", "everything.yaml"))
    assert [pod["securityContext"].get("fsGroup") for pod in pods(own)] == [10001]
    assert [pod["securityContext"].get("fsGroup") for pod in pods(theirs)] == [None, None]


@pytest.mark.parametrize(("act", "flags"), [({}, ["--observe"]), ({"act": False}, ["--observe"]), ({"act": True}, [])])
def test_a_run_is_only_watched_unless_acting_is_switched_on_for_it(act: dict[str, bool], flags: list[str]) -> None:
    (pod,) = pods(rendered(*run_of(WATCHED, **act)))
    assert pod["containers"][0]["args"] == ["watch", "--run", "/etc/sentinel/runs/tr8.toml", *flags]


def test_each_run_has_one_daemon_that_is_gone_before_the_next_one_comes() -> None:
    deployments = of_kind(rendered("--values", str(CHART / "ci" / "observer.yaml")), "Deployment")
    assert [one["metadata"]["name"] for one in deployments] == [
        "watch-sentinel-tr8",
        "watch-sentinel-llama-7b",
        "watch-sentinel-elsewhere-7b",
    ]
    for one in deployments:
        assert one["spec"]["replicas"] == 1
        assert one["spec"]["strategy"] == {"type": "Recreate"}
    assert len({json.dumps(one["spec"]["selector"]) for one in deployments}) == len(deployments)


@each_values
def test_what_a_pod_is_configured_with_loads(values: Path, tmp_path: Path) -> None:
    objects = rendered("--values", str(values))
    for configured in of_kind(objects, "ConfigMap"):
        found = {name: text for name, text in configured["data"].items() if name.endswith(".toml")}  # else a dashboard
        for name, text in found.items():
            (tmp_path / name).write_text(text)
        configs = {tmp_path / name: load_config(tmp_path / name) for name in found}
        assert conflicts(configs) == {}


def test_where_metrics_are_on_each_daemon_is_told_where_to_listen() -> None:
    def told(text: str, *options: str) -> Any:
        (one,) = of_kind(rendered(*run_of(text), *options), "ConfigMap")
        return tomllib.loads(one["data"]["tr8.toml"]).get("metrics")

    assert told(WATCHED) == {"address": "0.0.0.0", "port": 9466}  # noqa: S104 - a pod's own address
    assert told(WATCHED, "--set", "metrics.enabled=false") is None
    assert told(WATCHED + "[metrics]\nport = 1234\n") == {"port": 1234}


def test_who_selects_whom_finds_them() -> None:
    objects = rendered("--values", str(CHART / "ci" / "everything.yaml"))
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in of_kind(objects, "Deployment")]
    (service,), (policy,) = of_kind(objects, "Service"), of_kind(objects, "NetworkPolicy")
    (monitor,) = of_kind(objects, "ServiceMonitor")
    assert len(labels) == 2
    for each in labels:
        assert service["spec"]["selector"].items() <= each.items()
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= each.items()
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    assert monitor["spec"]["endpoints"][0]["port"] == port["name"]
    (opened,) = policy["spec"]["ingress"][0]["ports"]
    for pod in pods(objects):
        assert pod["containers"][0]["ports"] == [{"name": "metrics", "containerPort": port["port"], "protocol": "TCP"}]
        assert port["targetPort"] == "metrics"
        assert opened["port"] == port["port"]


GUARDED = "metrics.serviceMonitor.enabled=true,metrics.tls.secretName=tls,metrics.token.secretName=scrapes"


def test_where_metrics_are_guarded_daemon_and_prometheus_are_told_of_the_same_secrets() -> None:
    objects = rendered(*run_of(WATCHED), "--set", GUARDED)
    (configured,), (monitor,) = of_kind(objects, "ConfigMap"), of_kind(objects, "ServiceMonitor")
    metrics = tomllib.loads(configured["data"]["tr8.toml"])["metrics"]
    (pod,) = pods(objects)
    (container,) = pod["containers"]
    at = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"] if mount.get("readOnly")}
    of = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    held = {key: of[at[str(Path(metrics[key]).parent)]] for key in ("certificate", "key", "token_file")}
    assert held == {"certificate": "tls", "key": "tls", "token_file": "scrapes"}
    assert Path(metrics["token_file"]).name == "token"
    (endpoint,) = monitor["spec"]["endpoints"]
    (service,) = of_kind(objects, "Service")
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["serverName"] == f"{service['metadata']['name']}.training.svc"
    assert endpoint["tlsConfig"]["ca"] == {"secret": {"name": "tls", "key": "ca.crt"}}
    assert endpoint["authorization"]["credentials"] == {"name": "scrapes", "key": "token"}


def test_without_secrets_nothing_is_said_of_them() -> None:
    objects = rendered(*run_of(WATCHED), "--set", "metrics.serviceMonitor.enabled=true")
    (monitor,) = of_kind(objects, "ServiceMonitor")
    assert not {"scheme", "tlsConfig", "authorization"} & set(monitor["spec"]["endpoints"][0])
    assert not any("secret" in volume for pod in pods(objects) for volume in pod["volumes"])


def test_without_metrics_nothing_may_come_in() -> None:
    (policy,) = of_kind(rendered(*run_of(WATCHED), "--set", "metrics.enabled=false"), "NetworkPolicy")
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert policy["spec"]["ingress"] == []


def test_the_record_of_a_run_outlives_the_release() -> None:
    (claim,) = of_kind(rendered("--values", str(CHART / "ci" / "closed.yaml")), "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_a_changed_configuration_starts_the_daemon_again() -> None:
    def told(text: str) -> str:
        (one,) = of_kind(rendered(*run_of(text)), "Deployment")
        return str(one["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert told(WATCHED) == told(WATCHED)
    assert told(WATCHED) != told(WATCHED + "[watch]\npoll_interval_s = 9.0\n")


WITHOUT_STATE = WATCHED.replace('state_dir = "/data/s"\n', "") + '[source]\nkind = "log"\npath = "/logs/a.txt"\n'


def fleet_of(count: int, *options: str, text: str = WATCHED) -> tuple[str, ...]:
    """So many runs that the fleet's pods share."""
    runs = [{"name": f"r{n}", "config": text.replace("tr8", f"r{n}")} for n in range(count)]
    return "--set-json", "runs=" + json.dumps(runs), *options


def maps_of(pod: dict[str, Any]) -> list[str]:
    """The ConfigMaps that its configurations come from."""
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "configuration")
    return [source["configMap"]["name"] for source in volume["projected"]["sources"]]


FLEET = str(CHART / "ci" / "fleet.yaml")
HOME = "/tmp/fleet"  # noqa: S108 - in a pod, whose /tmp is its own


def test_a_fleet_is_one_pod_that_watches_all_and_acts_on_none() -> None:
    objects = rendered("--values", FLEET)
    (deployment,), (pod,) = of_kind(objects, "Deployment"), pods(objects)
    (container,) = pod["containers"]
    where = ["--config-dir", "/etc/sentinel/runs", "--fleet-dir", HOME]
    assert container["args"] == ["watch", "--all", *where, "--observe", "--workers", "1"]
    (configured,) = (one for one in of_kind(objects, "ConfigMap") if one["metadata"]["name"].endswith("-fleet"))
    assert set(configured["data"]) == {"tr8.toml", "llama-7b.toml", "elsewhere-7b.toml"}
    assert maps_of(pod) == [configured["metadata"]["name"]]
    (claim,) = of_kind(objects, "PersistentVolumeClaim")
    assert claim["metadata"]["name"] == "watch-sentinel-fleet-state"
    probes = [container[f"{kind}Probe"]["exec"]["command"] for kind in ("startup", "readiness", "liveness")]
    assert [command[3:] for command in probes] == [[f"{HOME}/alive", age] for age in ("180", "180", "1800")]
    (service,), (policy,) = of_kind(objects, "Service"), of_kind(objects, "NetworkPolicy")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["selector"].items() <= labels.items()
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()


def test_what_a_fleets_pod_is_told_is_a_command_that_watches(tmp_path: Path) -> None:
    """Its arguments and configurations, with the pod's folders elsewhere; its probes ask the file that it touches."""
    text = WATCHED.replace("/data", str(tmp_path))
    options = subprocess.run([sys.executable, "-m", "sentinel", "watch", "--help"], capture_output=True, text=True)  # noqa: PLW1510
    if "--workers" not in options.stdout:
        pytest.skip("this sentinel's watch has no --workers")
    (pod,) = pods(rendered(*run_of(text), "--set", "fleet.enabled=true"))
    (container,) = pod["containers"]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "tr8.toml").write_text(text)
    for here, there in (("runs", "/etc/sentinel/runs"), ("fleet", HOME)):
        container["args"] = [word.replace(there, str(tmp_path / here)) for word in container["args"]]
    ran = subprocess.run(
        [sys.executable, "-m", "sentinel", *container["args"], "--once"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "fleet" / "alive").exists()


def test_several_pods_share_the_runs_so_that_one_may_be_lost() -> None:
    """And the run that may be acted on has a pod of its own."""
    objects = rendered("--values", str(CHART / "ci" / "replicas.yaml"))
    fleet, alone = sorted(of_kind(objects, "Deployment"), key=lambda one: one["spec"]["replicas"], reverse=True)
    assert (fleet["spec"]["replicas"], alone["spec"]["replicas"]) == (3, 1)
    assert fleet["spec"]["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}
    (container,) = fleet["spec"]["template"]["spec"]["containers"]
    assert container["args"][-4:] == ["--workers", "2", "--most", "2"]  # three runs, and two pods are left of three
    assert container["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}
    (own,) = alone["spec"]["template"]["spec"]["containers"]
    assert own["args"] == ["watch", "--run", "/etc/sentinel/runs/tr11.toml"]
    assert own["resources"]["requests"]["memory"] == "256Mi"


@pytest.mark.parametrize(("runs", "replicas", "most"), [(10, 2, 10), (10, 3, 5), (11, 3, 6), (100, 9, 13), (3, 4, 1)])
def test_each_pod_takes_what_is_left_when_one_is_lost(runs: int, replicas: int, most: int) -> None:
    (deployment,) = of_kind(rendered(*fleet_of(runs, "--set", f"fleet.replicas={replicas}")), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"][-2:] == ["--most", str(most)]


def test_a_configuration_comes_without_its_comments_and_says_the_same() -> None:
    text = f"# one\n\n  # two\n{WATCHED}\t\n[watch]  # three\n\n[run_of_nothing]\na = '# no comment'\n# last"
    (one,) = (each for each in of_kind(rendered(*fleet_of(1, text=text)), "ConfigMap") if "fleet" in str(each))
    (short,) = one["data"].values()
    assert not any(line.lstrip().startswith("#") or not line.strip() for line in short.splitlines())
    kept = tomllib.loads(short)
    kept.pop("metrics")
    assert kept == tomllib.loads(text.replace("tr8", "r0"))


def test_a_string_of_several_lines_keeps_its_lines() -> None:
    text = WATCHED + '[run_of_nothing]\na = """\n# no comment\n\nend"""\n'
    (one,) = (each for each in of_kind(rendered(*fleet_of(1, text=text)), "ConfigMap") if "fleet" in str(each))
    (short,) = one["data"].values()
    assert tomllib.loads(short)["run_of_nothing"]["a"] == "# no comment\n\nend"


def values_of(folder: Path, count: int, text: str) -> str:
    """A file of values with so many runs, which would not fit a command line."""
    runs = [{"name": f"r{n}", "config": text.replace("tr8", f"r{n}")} for n in range(count)]
    (folder / "values.yaml").write_text(json.dumps({"runs": runs}))
    return str(folder / "values.yaml")


def test_many_configurations_are_split_over_configmaps_that_kubernetes_takes(tmp_path: Path) -> None:
    padded = WATCHED + f'[run_of_nothing]\na = "{30_000 * "x"}"\n'
    objects = rendered("--values", values_of(tmp_path, 100, padded))
    maps = [one for one in of_kind(objects, "ConfigMap") if "-fleet" in one["metadata"]["name"]]
    assert [one["metadata"]["name"] for one in maps] == [f"watch-sentinel-fleet{n}" for n in ("", "-2", "-3", "-4")]
    assert maps_of(next(pods(objects))) == [one["metadata"]["name"] for one in maps]
    assert sorted(file for one in maps for file in one["data"]) == sorted(f"r{n}.toml" for n in range(100))
    assert all(len(json.dumps(one["data"])) < 1 << 20 for one in maps)


def test_a_configuration_that_no_configmap_holds_is_refused(tmp_path: Path) -> None:
    long = WATCHED + f'[run_of_nothing]\na = "{900_000 * "x"}"\n'
    ran = helm("template", "watch", str(CHART), "--values", values_of(tmp_path, 1, long))
    assert ran.returncode != 0
    assert "a ConfigMap holds a mebibyte" in ran.stderr


def test_a_configmap_holds_two_thousand_runs_as_init_writes_them(tmp_path: Path) -> None:
    """Each has 30 kB, nearly all of it comments. Its [metrics] is empty, and is the chart's then."""
    command = [sys.executable, "-m", "sentinel", "init", "tr8"]
    subprocess.run(command, capture_output=True, timeout=60, check=True, cwd=tmp_path)
    text = (tmp_path / "runs" / "tr8.toml").read_text()
    for relative in ("../checkpoints", "../.sentinel"):
        text = text.replace(f'"{relative}', f'"/data/{relative[3:]}')
    text = text.replace("\n[launcher]\n", '\n[launcher]\nkind = "elsewhere"\n')
    objects = rendered("--values", values_of(tmp_path, 50, text))
    (one,) = (each for each in of_kind(objects, "ConfigMap") if "-fleet" in each["metadata"]["name"])
    assert len(one["data"]) == 50
    assert len(json.dumps(one["data"])) < 50 * 450
    assert tomllib.loads(one["data"]["r7.toml"])["metrics"] == {"address": "0.0.0.0", "port": 9466}  # noqa: S104 - in a pod


LOG = '[source]\nkind = "log"\npath = "/logs/a.txt"\n'


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (run_of("[run"), "tr8: its config is no TOML"),
        (run_of(WATCHED.replace('name = "tr8"\n', "")), '[run] needs the key "name"'),
        (run_of(WATCHED.replace('"/data/c"', '"c"')), 'run.checkpoints = "c" should be an absolute path'),
        (run_of(WATCHED.replace('state_dir = "/data/s"\n', "")), "no journal would ever come"),
        (run_of(WATCHED + '[source]\nkind = "prometheus"\nurl = "http://p"\n', act=True), "nothing of the run can be"),
        (run_of(WATCHED.replace("elsewhere", "local")), "would call the run down"),
        (run_of(WATCHED, name="TR8"), "name"),
        (run_of(WATCHED, mode="act"), "mode"),
        (run_of(WATCHED, podSecurityContext={"runAsUser": 0}), "runAsUser"),
        (fleet_of(2, "--set", "fleet.replicas=2", text=WITHOUT_STATE), "state.accessModes should have ReadWriteMany"),
        (fleet_of(5, "--set", "fleet.replicas=2,fleet.most=2"), "leave some of 5 unwatched"),
        (fleet_of(1, "--set", "fleet.workers=0"), "workers"),
        ((*run_of(WATCHED, act=True, name="fleet"), "--set", "fleet.enabled=true"), "choose another name"),
        (("--set", "podSecurityContext.runAsNonRoot=false"), "runAsNonRoot"),
        (("--set", "metrics.prot=9466"), "prot"),
        (("--set", "kubectl.enabled=true,serviceAccount.create=false"), "every pod's"),
        (("--set", "image.digest=sha256:12"), "digest"),
        (("--set", "trainers.podMonitor.enabled=true"), "selector"),
        (
            (*run_of(WATCHED + "[metrics]\nport = 1234\n"), "--set", "metrics.tls.secretName=tls"),
            "[metrics] of its own",
        ),
        (("--set", "metrics.enabled=false,metrics.serviceMonitor.enabled=true"), "needs metrics.enabled"),
    ],
)
def test_values_that_would_not_work_are_refused_with_a_reason(options: tuple[str, ...], says: str) -> None:
    ran = helm("template", "watch", str(CHART), *options)
    assert ran.returncode != 0, ran.stdout
    assert says in ran.stderr


def test_a_log_is_watched_with_a_state_of_its_own() -> None:
    text = WATCHED.replace('state_dir = "/data/s"\n', "") + LOG
    (pod,) = pods(rendered(*run_of(text)))
    assert pod["containers"][0]["workingDir"] == "/state"
    (claim,) = [volume for volume in pod["volumes"] if volume["name"] == "state"]
    assert claim["persistentVolumeClaim"] == {"claimName": "watch-sentinel-tr8-state"}


def test_the_probes_tell_a_daemon_that_makes_its_turns_from_one_that_does_not(tmp_path: Path) -> None:
    (pod,) = pods(rendered(*run_of(WATCHED)))
    (container,) = pod["containers"]
    probes = [container[f"{kind}Probe"]["exec"]["command"] for kind in ("startup", "readiness", "liveness")]
    assert {command[3] for command in probes} == {"/data/s/lock"}
    assert [command[4] for command in probes] == ["120", "120", "1800"]
    (tmp_path / "a.toml").write_text(WATCHED.replace("/data", str(tmp_path)) + "[watch]\npoll_interval_s = 0.1\n")
    (tmp_path / "s").mkdir()
    lock = tmp_path / "s" / "lock"

    def answers() -> list[int]:
        asked = ([sys.executable, *command[1:3], str(lock), command[4]] for command in probes)
        return [subprocess.run(each, capture_output=True, timeout=30, check=False).returncode for each in asked]

    assert answers() == [1, 1, 1]
    command = [sys.executable, "-m", "sentinel", "watch", "--run", str(tmp_path / "a.toml"), "--observe"]
    watch = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not lock.exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert answers() == [0, 0, 0]
    finally:
        watch.kill()
        watch.wait(10)
    for age_s, expected in ((300, [1, 1, 0]), (3000, [1, 1, 1])):
        os.utime(lock, (time.time() - age_s, time.time() - age_s))
        assert answers() == expected


def test_a_slow_poll_is_no_hang() -> None:
    (pod,) = pods(rendered(*run_of(WATCHED + "[watch]\npoll_interval_s = 600.5\n")))
    assert pod["containers"][0]["readinessProbe"]["exec"]["command"][4] == "1803"
    assert pod["containers"][0]["livenessProbe"]["exec"]["command"][4] == "1803"


def test_the_chart_is_of_the_versions_that_it_deploys() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == project["version"]
