-- needs now
-- Free a lock whoever holds it.
-- KEYS[1] lock  [2] waiters  [3] index  [4] last   ARGV[1] key
-- returns {1 it was held | 0 it was free, 1 somebody waits for it | 0 nobody does}
local held = redis.call('DEL', KEYS[1])
redis.call('DEL', KEYS[4])
if redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('ZADD', KEYS[3], now_ms(), ARGV[1])
  return {held, 1}
end
redis.call('ZREM', KEYS[3], ARGV[1])
return {held, 0}
