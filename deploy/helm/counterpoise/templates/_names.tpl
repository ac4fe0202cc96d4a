{{/* The name of all objects: that of the release, which need not repeat the chart's. */}}
{{- define "counterpoise.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What selects the replicas. */}}
{{- define "counterpoise.labels" -}}
{app.kubernetes.io/name: {{ .Chart.Name }}, app.kubernetes.io/instance: {{ .Release.Name }}}
{{- end -}}

{{/* By which names the service may be called. */}}
{{- define "counterpoise.hosts" -}}
{{- $name := include "counterpoise.name" . -}}
{{- $inside := list $name (printf "%s.%s.svc" $name .Release.Namespace) (printf "*.%s.svc.cluster.local" .Release.Namespace) -}}
{{- concat $inside .Values.allowedHosts | join "," -}}
{{- end -}}
