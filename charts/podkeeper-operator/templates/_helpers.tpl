{{- define "operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else if hasPrefix .Release.Name $name }}
{{- $name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{/* Bookies let in the pods of this name: it is the same in every release. */}}
{{- define "operator.everyPod" -}}
app.kubernetes.io/name: podkeeper-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "operator.selector" -}}
{{ include "operator.everyPod" . }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "operator.labels" -}}
{{ include "operator.selector" . }}
app.kubernetes.io/part-of: podkeeper
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "operator.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}
{{- end }}

{{/* Namespaces in which the operator works, as a list in JSON; empty with clusterWide. */}}
{{- define "operator.namespaces" -}}
{{- if .Values.clusterWide }}
{{- if .Values.namespaces }}
{{- fail "clusterWide works in all namespaces: leave namespaces empty, or set clusterWide=false" }}
{{- end -}}
[]
{{- else -}}
{{ .Values.namespaces | default (list .Release.Namespace) | uniq | toJson }}
{{- end }}
{{- end }}
