-- The server's time, read once per call of a script.
local time = redis.call('TIME')

local function now_ms()
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
