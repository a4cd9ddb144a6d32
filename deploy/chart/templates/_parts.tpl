{{- define "flexvol.image" -}}
{{- with .Values.image }}
{{- if not .repository }}
{{- fail "set image.repository to where you have pushed the image of deploy/Dockerfile, such as --set image.repository=registry.example.com/flexvol" }}
{{- end -}}
image: {{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
imagePullPolicy: {{ .pullPolicy }}
{{- end }}
{{- end }}

{{- /* Which nodes a component's pods are for, and how they are pulled. */}}
{{- define "flexvol.placement" -}}
{{- $root := index . 0 }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with index . 1 }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The API server's address, if it has to be said. */}}
{{- define "flexvol.apiServer" -}}
{{- with .Values.apiServer }}
- {name: KUBERNETES_SERVICE_HOST, value: {{ . | quote }}}
{{- end }}
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

{{- /* Annotations of pods: the root, and what their user adds. */}}
{{- define "flexvol.podAnnotations" -}}
{{- $root := index . 0 }}
{{- $own := dict }}
{{- if and $root.Values.claims $root.Values.metrics.annotations }}
{{- $own = dict "prometheus.io/scrape" "true" "prometheus.io/port" "8080" }}
{{- end }}
{{- with merge dict (index . 1) $own }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The provisioner of storage classes that say none. */}}
{{- define "flexvol.provisioner" -}}
{{- with index .Values.drivers 0 }}{{ .provisioner | default .name }}{{ end }}
{{- end }}

{{- /* Annotations of what the pod of `helm test` needs, which is made before it and removed with the test. */}}
{{- define "flexvol.hook" -}}
helm.sh/hook: test
helm.sh/hook-weight: "-1"
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
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
{{- $root := index . 0 }}
{{- $part := index . 1 }}
{{- $since := index . 2 }}
{{- $wanted := index $root.Values.admission $part | toString }}
{{- $version := $root.Capabilities.KubeVersion.Version }}
{{- $can := semverCompare (printf ">=%s.0-0" $since) $version }}
{{- if and (eq $wanted "true") (not $can) }}
{{- fail (printf "admission.%s is true and needs Kubernetes %s, which is %s; say auto or false, and read in docs/operate/security.md what is not guarded then" $part $since $version) }}
{{- end }}
{{- /* What guards against whoever has taken a node or the controller is not left out in silence. */}}
{{- if and $root.Values.claims (eq $wanted "auto") (not $can) (has $part (list "agents" "controller")) }}
{{- fail (printf "admission.%s needs Kubernetes %s, which is %s: say --set admission.%s=false to go without, and read in docs/operate/security.md what is not guarded then" $part $since $version $part) }}
{{- end }}
{{- if and $can (ne $wanted "false") }}true{{ end }}
{{- end }}
