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

{{/* The command that makes the first key. The database's URL stays in its secret and a pipe; the
labels let its pod through the policy of the database. */}}
{{- define "counterpoise.firstKey" -}}
kubectl --namespace {{ .Release.Namespace }} get secret {{ .Values.database.secret }} --output jsonpath='{.data.{{ .Values.database.key | replace "." "\\." }}}' | base64 --decode | kubectl --namespace {{ .Release.Namespace }} run {{ include "counterpoise.name" . }}-first-key --rm --stdin --quiet --restart=Never --image={{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }} --labels=app.kubernetes.io/name={{ .Chart.Name }},app.kubernetes.io/instance={{ .Release.Name }} --env=COUNTERPOISE_DATABASE_URL_FILE=/dev/stdin -- keys create --role admin --name operators
{{- end -}}
