-- Health of a BookieTask for Argo CD: resource.customizations.health.podkeeper.dev_BookieTask
local status = obj.status or {}
local message = status.message or ""
if status.phase == "Done" then
  return { status = "Healthy", message = message }
end
if status.phase == "Failed" then
  return { status = "Degraded", message = message }
end
if message == "" then
  message = "Waiting for its turn"
end
return { status = "Progressing", message = message }
