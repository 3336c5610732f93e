-- Health of a BookieJob for Argo CD: resource.customizations.health.podkeeper.dev_BookieJob
local health = { status = "Progressing", message = "Waiting for the operator" }
if obj.status == nil or obj.status.conditions == nil then
  return health
end
local found = {}
for _, condition in ipairs(obj.status.conditions) do
  found[condition.type] = condition
end
if found.Ready == nil or (obj.status.observedGeneration or 0) < (obj.metadata.generation or 0) then
  return health
end
health.message = found.Ready.message or ""
if health.message == "" then
  health.message = found.Ready.reason
end
if obj.status.phase == "Suspended" then
  health.status = "Suspended"
elseif found.Stalled ~= nil and found.Stalled.status == "True" then
  health.status = "Degraded"
-- A run that failed is no state of a schedule: the next one may succeed, and alerts tell of it.
elseif found.Ready.status == "True" then
  health.status = "Healthy"
end
return health
