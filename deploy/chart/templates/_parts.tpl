{{- define "flexvol.image" -}}
image: {{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- /* What a container may not that needs nothing of this. */ -}}
{{- define "flexvol.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- /* Rules of a schema are there since then, and older releases refuse to be told any. */}}
{{- define "flexvol.rules" -}}
{{- if semverCompare ">=1.25.0-0" .Capabilities.KubeVersion.Version }}true{{ end }}
{{- end }}

{{- /* What identifies storage to its driver, which the agents take from drivers and check (`agent/bounds.rs`). */}}
{{- define "flexvol.made" -}}
options:
  type: object
  maxProperties: 128
  {{- if include "flexvol.rules" . }}
  x-kubernetes-validations: [{rule: "self.all(name, size(name) <= 253)", message: no option's name is so long}]
  {{- end }}
  additionalProperties: {type: string, maxLength: 8192}
fsType: {type: string, maxLength: 63, nullable: true}
{{- end }}

{{- /* Where health and numbers are asked for. */ -}}
{{- define "flexvol.probes" -}}
ports:
- {name: http, containerPort: 8080}
livenessProbe: {httpGet: {path: /healthz, port: http}}
readinessProbe: {httpGet: {path: /readyz, port: http}}
{{- end }}

{{- define "flexvol.annotations" -}}
{{- if .Values.metrics }}
prometheus.io/scrape: "true"
prometheus.io/port: "8080"
{{- end }}
{{- end }}
{{- /* Whether the scheduler looks for room for any driver, by objects that Kubernetes has since 1.24. */ -}}
{{- define "flexvol.scheduled" -}}
{{- $root := . }}
{{- range .Values.drivers }}
{{- if and .provisioner $root.Values.claims (semverCompare ">=1.24.0-0" $root.Capabilities.KubeVersion.Version) }}true{{ end }}
{{- end }}
{{- end }}

{{/* Whether a part of admission is wanted, and can be had: its name, and since which release. */}}
{{- define "flexvol.admits" -}}
{{- if hasKey (index . 0).Values.admission "volumes" }}
{{- fail "admission.volumes is called admission.controller now" }}
{{- end }}
{{- $root := index . 0 }}
{{- $part := index . 1 }}
{{- $since := index . 2 }}
{{- $wanted := index $root.Values.admission $part | toString }}
{{- $version := $root.Capabilities.KubeVersion.Version }}
{{- $can := semverCompare (printf ">=%s.0-0" $since) $version }}
{{- if not (has $wanted (list "auto" "true" "false")) }}
{{- fail (printf "admission.%s is %q; say auto, true or false" $part $wanted) }}
{{- end }}
{{- if and (eq $wanted "true") (not $can) }}
{{- fail (printf "admission.%s is true and needs Kubernetes %s, which is %s; say auto or false, and read in docs/operate/security.md what is not guarded then" $part $since $version) }}
{{- end }}
{{- /* What guards against whoever has taken a node or the controller is not left out in silence. */}}
{{- if and $root.Values.claims (eq $wanted "auto") (not $can) (has $part (list "agents" "controller")) }}
{{- fail (printf "admission.%s needs Kubernetes %s, which is %s: say --set admission.%s=false to go without, and read in docs/operate/security.md what is not guarded then" $part $since $version $part) }}
{{- end }}
{{- if and $can (ne $wanted "false") }}true{{ end }}
{{- end }}
