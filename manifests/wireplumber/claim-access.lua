-- What the clients of a claim's socket may see, and where their streams go.
--
-- Each claim's socket is a PipeWire security context that claim-sockets makes. PipeWire stamps the
-- context's properties on every client of that socket and takes no change of a property whose name
-- begins with "pipewire.sec." from a client. Those that count here:
--   pipewire.sec.engine                   "audio.liken.sh": the client comes from a claim's socket
--   pipewire.sec.app-id                   "<namespace>/<name>" of the claim, for messages
--   pipewire.sec.audio.liken.sh.reach     what the claim holds: a JSON object from device to
--       { "direction": "playback" or "capture",
--         "monitor": true where it may record what the sink plays,
--         "setVolume": true where it may set the volume of the device's node,
--         "maxVolume": percent that it can't set it over,
--         "shared": true where other claims hold the device too }
--   pipewire.sec.audio.liken.sh.server    "pulse" for the claim's pipewire-pulse, a program of ours
-- A node belongs to the device that its property audio.liken.sh.device names. The agent sets it on
-- the nodes that it makes. Those of Bluetooth devices are WirePlumber's: they belong to the device of
-- their address. A node that a client of a security context made belongs to no device,
-- whatever it calls itself. Nothing that such a client says of itself counts either.
--
-- PipeWire lets a new client wait until somebody grants it the core, and nobody else grants
-- anything to these clients: until this script has looked at a client it can do nothing.

log = Log.open_topic ("s-claim-access")

lutils = require ("linking-utils")
cutils = require ("common-utils")

local ENGINE = "audio.liken.sh"
local REACH = "pipewire.sec.audio.liken.sh.reach"
local SERVER = "pipewire.sec.audio.liken.sh.server"
local DEVICE = "audio.liken.sh.device"
local CORE = 0
local EACCES = -13
local SETTLE_MSEC = 2000

local clients = ObjectManager { Interest { type = "client" } }
local nodes = ObjectManager { Interest { type = "node" } }
-- A stream is made by this factory; no other is of use to a claim.
local factories = ObjectManager {
  Interest {
    type = "factory",
    Constraint { "factory.name", "=", "client-node", type = "pw-global" },
  }
}

-- Global, since no function needs it and Lua would collect it.
links = ObjectManager { Interest { type = "link" } }

-- Parsed reaches by client id; an id is used again, so the text is compared.
local reaches = {}

local function is_claims (client)
  return client.properties ["pipewire.sec.engine"] == ENGINE
end

local function claim_of (client)
  return "the claim " .. tostring (client.properties ["pipewire.sec.app-id"])
end

local function reach_of (client)
  local id, text = client ["bound-id"], client.properties [REACH] or ""
  local known = reaches [id]
  if known == nil or known.text ~= text then
    local ok, devices = pcall (function () return Json.Raw (text):parse () end)
    if not ok or type (devices) ~= "table" then
      log:warning (client, claim_of (client) .. " has an unreadable reach: " .. text)
      devices = {}
    end
    known = { text = text, devices = devices }
    reaches [id] = known
  end
  return known.devices
end

local function is_pulse (client)
  return client.properties [SERVER] == "pulse"
end

local function with_id (objects, id)
  return objects:lookup { Constraint { "bound-id", "=", id, type = "gobject" } }
end

-- The client of a claim that made the node, nil when it is somebody else's.
local function claims_client_of (node)
  local id = node.properties ["client.id"]
  local client = id and with_id (clients, id)
  return client and is_claims (client) and client or nil
end

-- The device that properties name; of a Bluetooth device as graph/naming.py and graph/endpoints.py
-- have it: a loopback stands for a profile that is off, and a phone's music is no microphone.
local function named_device (properties)
  local address, class = properties ["api.bluez5.address"], properties ["media.class"]
  if address == nil then return properties [DEVICE] end
  local name = address:lower ():gsub (":", "-")
  local profile = properties ["api.bluez5.profile"] or ""
  if properties ["bluez5.loopback"] == "true" then return nil end
  if class == "Audio/Sink" then return name end
  if class == "Audio/Source" and profile:find ("^headset%-head%-unit") then
    return name .. "-capture"
  end
  return nil
end

-- The device of a node; nil when it has none, and while it isn't known whose node it is.
local function device_of (node)
  local properties = node.properties
  local id = properties ["client.id"]
  if id then
    local client = with_id (clients, id)
    if client == nil or client.properties ["pipewire.sec.engine"] then return nil end
  end
  return named_device (properties)
end

-- What a claim's client may do with a node, nil for nothing. To see it is all that a stream needs.
-- With "x" a client can have the node destroyed; with "w" it can set much more than a volume: which
-- card's device the node opens, filters, files to write to. So only pipewire-pulse has them, which
-- offers its own clients volume and mute and nothing else.
local function permissions_on (client, node)
  if node.properties ["client.id"] == tostring (client ["bound-id"]) then return "rwx" end
  local device = device_of (node)
  local held = device and reach_of (client) [device]
  if not held then return nil end
  if not is_pulse (client) then return "r" end
  return held.setVolume and "rwx" or "rx"
end

-- Everything that a claim's client gets, in one message: it goes on once it has the core.
local function admit (client)
  if not is_claims (client) or factories:get_n_objects () == 0 then return end
  local permissions = { ["any"] = "-", [CORE] = "rx", [client ["bound-id"]] = "rwx" }
  for factory in factories:iterate () do permissions [factory ["bound-id"]] = "r" end
  for node in nodes:iterate () do
    permissions [node ["bound-id"]] = permissions_on (client, node)
  end
  log:info (client, "client of " .. claim_of (client))
  client:update_permissions (permissions)
end

local function admit_all ()
  for client in clients:iterate () do admit (client) end
end

clients:connect ("object-added", function (_, client)
  admit (client)
  if is_claims (client) then return end
  -- Its nodes may have been there before it.
  for node in nodes:iterate () do
    if node.properties ["client.id"] == tostring (client ["bound-id"]) then admit_all () end
  end
end)

-- Limits of claims whose clients left a moment ago, by device: what one of them set last may still
-- be on its way here.
local left = {}

local function limit_of (device)
  local limit = left [device]
  for client in clients:iterate () do
    local held = is_claims (client) and reach_of (client) [device]
    local its = held and held.maxVolume
    if its and (limit == nil or its < limit) then limit = its end
  end
  return limit
end

-- Brings a node's volume down to its claims' limit at once. The agent does so too, at its own pace.
local function limit_volume (node)
  local device = device_of (node)
  local limit = device and limit_of (device)
  if limit == nil then return end
  local most = (limit / 100) ^ 3
  for param in node:iterate_params ("Props") do
    local volumes = (cutils.parseParam (param, "Props") or {}).channelVolumes or {}
    local limited, is_over = { "Spa:Float" }, false
    for _, volume in ipairs (volumes) do
      is_over = is_over or volume > most * 1.0001  -- PipeWire keeps 32 bits
      table.insert (limited, math.min (volume, most))
    end
    if is_over then
      log:info (node, "brought down to " .. limit .. " %, the limit of its claims")
      node:set_param ("Props", Pod.Object {
        "Spa:Pod:Object:Param:Props", "Props", channelVolumes = Pod.Array (limited),
      })
    end
  end
end

clients:connect ("object-removed", function (_, client)
  if is_claims (client) and is_pulse (client) then
    for device, held in pairs (reach_of (client)) do
      if held.maxVolume then
        left [device] = held.maxVolume
        Core.timeout_add (SETTLE_MSEC, function ()
          left [device] = nil
          return false
        end)
      end
    end
  end
  reaches [client ["bound-id"]] = nil
end)

nodes:connect ("object-added", function (_, node)
  if named_device (node.properties) then
    node:connect ("params-changed", function (_, param)
      if param == "Props" then limit_volume (node) end
    end)
  end
  for client in clients:iterate () do
    local granted = is_claims (client) and permissions_on (client, node)
    if granted then client:update_permissions { [node ["bound-id"]] = granted } end
  end
end)

factories:connect ("object-added", admit_all)

-- pipewire-pulse tells a client that its stream is there once it sees the stream's link.
links:connect ("object-added", function (_, link)
  for _, key in ipairs { "link.output.node", "link.input.node" } do
    local node = with_id (nodes, link.properties [key])
    local client = node and claims_client_of (node)
    if client and is_pulse (client) then
      client:update_permissions { [link ["bound-id"]] = "r" }
    end
  end
end)

-- What is wrong with a claim's stream, nil when nothing is.
local function refusal (si_props, client)
  local is_monitor = cutils.parseBool (si_props ["stream.capture.sink"])
  local is_playback = is_monitor or si_props ["item.node.direction"] == "output"
  local has_any = false
  for _, held in pairs (reach_of (client)) do
    if (held.direction == "playback") == is_playback then
      has_any = true
      if not is_monitor or held.monitor then return nil end
    end
  end
  if is_monitor and has_any then
    return "may not record what its sink plays: its class doesn't set monitor"
  end
  return "holds no " .. (is_playback and "sink" or "source")
end

-- Whether a stream of the claim may be linked to the device's linkable.
local function fits (si_props, linkable, held)
  if linkable.properties ["item.node.direction"] ~= cutils.getTargetDirection (si_props) then
    return false
  end
  if cutils.parseBool (si_props ["stream.capture.sink"]) and not held.monitor then return false end
  return lutils.canLink (si_props, linkable)
end

-- The linkable that a claim's stream is to use: the one it asked for when the claim holds it, else
-- the first by device name.
local function pick (si_props, linkables, client)
  local reach = reach_of (client)
  local wanted = si_props ["target.object"] or si_props ["node.target"]
  local picked, picked_device = nil, nil
  for linkable in linkables:iterate { type = "SiLinkable" } do
    local node = linkable:get_associated_proxy ("node")
    local device = node and device_of (node)
    local held = device and reach [device]
    if held and fits (si_props, linkable, held) then
      local properties = linkable.properties
      if wanted and (wanted == properties ["node.name"] or wanted == properties ["object.serial"]
          or wanted == device) then
        return linkable, held
      end
      if picked == nil or device < picked_device then picked, picked_device = linkable, device end
    end
  end
  return picked, picked_device and reach [picked_device]
end

SimpleEventHook {
  name = "claim-access/find-target",
  before = {
    "linking/find-defined-target", "linking/find-filter-target",
    "linking/find-media-role-target", "linking/find-default-target",
    "linking/find-best-target", "linking/get-filter-from-target", "linking/prepare-link",
  },
  interests = { EventInterest { Constraint { "event.type", "=", "select-target" } } },
  execute = function (event)
    local _, linkables, si, si_props, si_flags = lutils:unwrap_select_target_event (event)
    local node = si:get_associated_proxy ("node")
    local client = node and claims_client_of (node)
    if client == nil then return end
    local message = refusal (si_props, client)
    if message == nil then
      local target, held = pick (si_props, linkables, client)
      if target and held.shared and cutils.parseBool (si_props ["node.exclusive"]) then
        message = "shares its device and can't have it exclusively"
      elseif target then
        si_flags.has_defined_target = true
        si_flags.has_node_defined_target = false
        event:set_data ("target", target)
        return
      end
    end
    if message then
      log:notice (node, claim_of (client) .. " " .. message)
      lutils.sendClientError (event, node, EACCES, claim_of (client) .. " " .. message)
    end
    -- With neither target nor message the stream waits: the device's node is away and will be back.
    event:stop_processing ()
  end
}:register ()

-- A claim's client makes streams. Sinks, sources and filters of its own would be offered to others.
SimpleEventHook {
  name = "claim-access/streams-only",
  before = "node/create-item",
  interests = { EventInterest { Constraint { "event.type", "=", "node-added" } } },
  execute = function (event)
    local node = event:get_subject ()
    local client = claims_client_of (node)
    if client == nil then return end
    local media_class = node.properties ["media.class"]
    if media_class == nil or media_class:find ("^Stream/") then return end
    local shown = media_class:gsub ("%c", "?"):sub (1, 64)
    local message = claim_of (client) .. " allows streams only, no node of class " .. shown
    log:notice (node, message)
    client:send_error (node ["bound-id"], EACCES, message)
    event:stop_processing ()
  end
}:register ()

factories:activate ()
clients:activate ()
nodes:activate ()
links:activate ()
