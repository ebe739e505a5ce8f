-- needs now record
-- Release the lock and end the guard's record of a task, but only for their holder. A second send
-- does nothing. With done, also end a task that was refused, after its result is stored.
-- KEYS[1] guard  [2] guard index   with a lock also: [3] lock  [4] waiters  [5] index
-- ARGV[1] token  [2] task id  [3] done: no copy may run again | again: a copy may run
--     [4] deadline_ms, 0: none  [5] life_ms of the guard's record
--     with a lock also: [6] key
--     [7] ms for which the lock is kept for this task's retry, its lease included, 0: release it
--     [8] attempt  [9] lease_ms
-- to record the run, behind all others:
--     KEYS rows of its entry, feed, deadlines, incidents   ARGV fate, as in shared/record.lua
-- returns {1 a standby copy is to be published, else 0; 1 the lock was ours, else 0;
--     1 a task waits for it, else 0; the error of the record, '': none}
local now = now_ms()
local token, id = ARGV[1], ARGV[2]
local locked = #ARGV >= 9
local fate = ARGV[locked and 10 or 6]

local standby = 0
local g = redis.call('HMGET', KEYS[1], 'token', 'state', 'attempt', 'standby', 'standby_attempt', 'until')
local other = g[2] == 'running' and g[1] ~= token
local why = fate and try_to_record(KEYS[#KEYS - 3], {unpack(KEYS, #KEYS - 2)}, now, fate, other) or ''
if g[1] == token and (g[2] == 'running' or (g[2] == 'refused' and ARGV[3] == 'done')) then
  if ARGV[3] == 'done' then
    redis.call('DEL', KEYS[1])
    redis.call('HSET', KEYS[1], 'state', 'done', 'attempt', g[3])
    local deadline = tonumber(ARGV[4])
    redis.call('PEXPIREAT', KEYS[1], deadline > now and deadline + 1000 or now + tonumber(ARGV[5]))
    if g[4] then
      redis.call('ZREM', KEYS[2], id)
    end
    if g[4] and tonumber(g[5]) > tonumber(g[3]) then
      -- The next attempt arrived before this one had ended. A copy of this attempt is dropped
      -- instead.
      redis.call('HSET', KEYS[1], 'standby', g[4], 'standby_attempt', g[5])
      standby = 1
    end
  else
    redis.call('HSET', KEYS[1], 'state', 'dead')
    standby = g[4] and 1 or 0
  end
  if standby == 1 then
    redis.call('ZADD', KEYS[2], now, id)
  end
end
if not locked then
  return {standby, 0, 0, why}
end
local key, hold, lease = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[9])
local holder = redis.call('HGET', KEYS[3], 'token')
if holder ~= token then
  return {standby, 0, 0, why}
end

if hold > 0 then
  local due = now + hold - lease
  redis.call('HSET', KEYS[3], 'token', 'queued|' .. id, 'state', 'queued', 'due', due, 'ended', ARGV[8])
  redis.call('PEXPIRE', KEYS[3], hold)
  redis.call('ZADD', KEYS[5], now + hold, key)
  return {standby, 1, 0, why}
end
redis.call('DEL', KEYS[3])
if redis.call('EXISTS', KEYS[4]) == 1 then
  -- Due at once, so that the lock sweeper wakes the next waiter if the caller dies before it does.
  redis.call('ZADD', KEYS[5], now, key)
  return {standby, 1, 1, why}
end
redis.call('ZREM', KEYS[5], key)
return {standby, 1, 0, why}
