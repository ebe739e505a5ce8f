-- needs now
-- Keep what a running task holds for another lease, but only for its holder.
-- KEYS[1] guard   with a lock also: [2] lock  [3] index
-- ARGV[1] token  [2] task id  [3] attempt  [4] lease_ms
--     [5] what is put back if it has expired and nobody has it: all | lock | nothing
--     with a lock also: [6] key  [7] fence, 0: a main process, which renews for its child, does not know it  [8] holder
-- returns {1 the guard's record is ours | 0 it is not, 1 the lock is ours | 0 it is lost | -1 there is none}
local now = now_ms()
local token, id, lease, put_back = ARGV[1], ARGV[2], tonumber(ARGV[4]), ARGV[5]

local guard = 0
local g = redis.call('HMGET', KEYS[1], 'token', 'state', 'until')
-- A flush takes the guard's record and the lock. A clock of the server that leaps ahead lets both expire. If the record
-- has not expired and the lock is gone, somebody has released the lock: by hand, or because the body has ended.
local expired = not g[3] or tonumber(g[3]) <= now
-- A renewal that arrives after the end of its run finds another state, and must not bring anything back.
if (g[1] == token and g[2] == 'running') or (not g[2] and put_back == 'all') then
  redis.call('HSET', KEYS[1], 'state', 'running', 'attempt', ARGV[3], 'token', token, 'until', now + lease)
  if redis.call('PTTL', KEYS[1]) < 2 * lease then
    redis.call('PEXPIRE', KEYS[1], 2 * lease)
  end
  guard = 1
end
if not KEYS[2] then
  return {guard, -1}
end

local holder = redis.call('HGET', KEYS[2], 'token')
if holder ~= token then
  if holder or guard == 0 or not expired or put_back == 'nothing' then
    return {guard, 0}
  end
  redis.call('HSET', KEYS[2], 'token', token, 'task', id, 'state', 'running', 'since', now, 'lease', lease)
end
if ARGV[7] ~= '0' then
  redis.call('HSET', KEYS[2], 'fence', ARGV[7], 'holder', ARGV[8])
end
redis.call('PEXPIRE', KEYS[2], lease)
redis.call('ZADD', KEYS[3], now + lease, ARGV[6])
return {guard, 1}
