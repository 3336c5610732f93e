{{- define "cluster.name" -}}
{{- $name := default .Release.Name .Values.clusterName }}
{{- if gt (len $name) 40 }}
{{- fail (printf "the name of the cluster, %s, has %d characters: at most 40 leave room for the names of its pods; set clusterName" $name (len $name)) }}
{{- end }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}
{{- fail (printf "the name of the cluster, %s, has to begin with a letter, because Services are named after it, and to hold lower-case letters, digits and dashes only; set clusterName" $name) }}
{{- end }}
{{- $name }}
{{- end }}

{{- define "cluster.labels" -}}
app.kubernetes.io/name: podkeeper-cluster
app.kubernetes.io/instance: {{ include "cluster.name" . }}
app.kubernetes.io/part-of: podkeeper
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "cluster.version" -}}
{{- default .Chart.AppVersion .Values.spec.version }}
{{- end }}

{{/* What clients use: the operator writes the same into status.metadataServiceUri. */}}
{{- define "cluster.metadataServiceUri" -}}
{{- $service := .Values.spec.metadataService }}
{{- $root := default "/ledgers" $service.rootPath }}
{{- if eq (default "External" $service.type) "Embedded" -}}
embedded://{{ include "cluster.name" . }}-metadata.{{ .Release.Namespace }}.svc:2281{{ $root }}
{{- else if eq (default "External" $service.type) "Etcd" -}}
{{- $set := printf "%s-metadata" (include "cluster.name" .) }}
{{- $members := list }}
{{- range $ordinal := until (int (dig "etcd" "replicas" 3 $service)) }}
{{- $members = append $members (printf "%s-%d.%s.%s.svc:2379" $set $ordinal $set $.Release.Namespace) }}
{{- end -}}
etcd://{{ join "," $members }}{{ $root }}
{{- else -}}
{{ trimSuffix "/" $service.uri }}{{ $root }}
{{- end }}
{{- end }}

{{- define "cluster.quorums" -}}
{{- $given := .Values.spec.durability | default dict }}
{{- merge (dict) $given (dict "ensembleSize" 3 "writeQuorum" 3 "ackQuorum" 2) | toJson }}
{{- end }}

{{/* A text of alerts or dashboards, with the names of this cluster. */}}
{{- define "cluster.named" -}}
{{- $quorums := include "cluster.quorums" .root | fromJson }}
{{- $text := .text | replace "__NAMESPACE__" .root.Release.Namespace }}
{{- $text = $text | replace "__CLUSTER__" (include "cluster.name" .root) }}
{{- $text = $text | replace "__ENSEMBLE_SIZE__" (toString $quorums.ensembleSize) }}
{{- $text | replace "__RUNBOOKS__" (trimSuffix "/" .root.Values.prometheusRule.runbookUrl) }}
{{- end }}
