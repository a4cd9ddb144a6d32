{{- /* What the names of the release's objects begin with. */ -}}
{{- define "flexvol.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride }}
{{- else if contains .Chart.Name .Release.Name -}}
{{ .Release.Name }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 48 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* By which pods are selected, and nobody can change that later: the root and a component. */}}
{{- define "flexvol.selector" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- /* The labels of an object: the root and its component. */}}
{{- define "flexvol.labels" -}}
{{- $root := index . 0 -}}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{ include "flexvol.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: {{ $root.Chart.Name }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
{{- end }}

{{- /* Name and labels of an object of the cluster: the root, its component, and what follows the release in its name. */}}
{{- define "flexvol.metadata" -}}
name: {{ include "flexvol.fullname" (index . 0) }}{{ index . 2 }}
labels:
  {{- include "flexvol.labels" . | nindent 2 }}
{{- end }}

{{- /* The same of an object in the release's namespace. */}}
{{- define "flexvol.metadata.namespaced" -}}
name: {{ include "flexvol.fullname" (index . 0) }}{{ index . 2 }}
namespace: {{ (index . 0).Release.Namespace }}
labels:
  {{- include "flexvol.labels" . | nindent 2 }}
{{- end }}

{{- /* The service account of a component, as a subject of bindings. */}}
{{- define "flexvol.account" -}}
{kind: ServiceAccount, name: {{ include "flexvol.fullname" (index . 0) }}-{{ index . 1 }}, namespace: {{ (index . 0).Release.Namespace }}}
{{- end }}

{{- /* The name of a component's service account to the API server. */}}
{{- define "flexvol.user" -}}
system:serviceaccount:{{ (index . 0).Release.Namespace }}:{{ include "flexvol.fullname" (index . 0) }}-{{ index . 1 }}
{{- end }}

{{- /* The labels of a pod: the root, its component, and what its user adds. */}}
{{- define "flexvol.podLabels" -}}
{{ include "flexvol.labels" . }}
{{- with index . 2 }}
{{ toYaml . }}
{{- end }}
{{- end }}
