-- Health of a BookieCluster for Argo CD: resource.customizations.health.podkeeper.dev_BookieCluster
local health = { status = "Progressing", message = "Waiting for the operator" }
local status = obj.status or {}
local found = {}
for _, condition in ipairs(status.conditions or {}) do
  found[condition.type] = condition
end

local function is(kind, value)
  return found[kind] ~= nil and found[kind].status == value
end

local function tell(kind)
  local condition = found[kind]
  local text = condition.reason or kind
  if condition.message ~= nil and condition.message ~= "" then
    text = text .. ": " .. condition.message
  end
  return text
end

local annotations = obj.metadata.annotations or {}
if string.lower(annotations["podkeeper.dev/paused"] or "") == "true" then
  return { status = "Suspended", message = "Paused by the annotation podkeeper.dev/paused" }
end
if is("DeletionBlocked", "True") then
  return { status = "Degraded", message = tell("DeletionBlocked") }
end
if status.observedGeneration == nil or status.observedGeneration ~= obj.metadata.generation then
  return health
end
if is("Stalled", "True") then
  return { status = "Degraded", message = tell("Stalled") }
end
if is("SpecValid", "False") then
  return { status = "Degraded", message = tell("SpecValid") }
end
if is("Ready", "True") then
  return { status = "Healthy", message = tell("Ready") }
end
-- A cluster that is being created is not available either, and a degraded resource ends a sync: so what is under way
-- without an operation is waited for. If it takes too long the operator says Stalled.
if is("Available", "False") and (status.operation ~= nil or not is("Reconciling", "True")) then
  return { status = "Degraded", message = tell("Available") }
end
if found.Ready ~= nil then
  health.message = tell("Ready")
end
return health
