-- For the scripts that write whole batches.
local CHUNK = 1000 -- values in one command: a call costs more than a value, and unpack() has a limit

-- Give a command all of these values, so many at a time.
local function write(command, key, values)
  for n = 1, #values, CHUNK do
    redis.call(command, key, unpack(values, n, math.min(n + CHUNK - 1, #values)))
  end
end
