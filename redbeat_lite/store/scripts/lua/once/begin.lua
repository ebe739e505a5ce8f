-- needs fence record
-- Decide whether a task runs now, waits for its once-lock, is refused, or is a copy of a task that
-- ran or runs. If it runs, claim its id, and acquire its lock if it has one. A second send answers
-- the same.
-- KEYS[1] guard  [2] guard index
--     with a lock also: [3] lock  [4] waiters  [5] parked  [6] index  [7] fence
-- ARGV[1] token  [2] task id  [3] attempt  [4] lease_ms  [5] deadline_ms, 0: none
--     [6] life_ms of the guard's record  [7] the message, '': not encoded yet
--     with a lock also: [8] key
--     [9] skip | wait | raise | try, which remembers no refusal, so that the caller may ask again
--     [10] holder  [11] max waiters, 0: no bound  [12] kept_ms of locks that no worker looks after
--     [13] expires_ms of the message, 0: never
-- to record the run if it goes ahead, behind all others:
--     KEYS rows of its entry, feed, deadlines, incidents   ARGV fate, as in shared/record.lua
-- returns {verdict, text}, and with run the error of the record, '': none
--   run, fence      go ahead
--   encode          call again with the message, because it has to be parked
--   parked, place   the message waits for the lock
--   taken, task id  another task has the lock
--   full, task id   too many messages wait
--   refused, task id   an earlier copy got taken or full, and may have died then
--   old             the deadline is over
--   standby         parked until the copy that runs has ended
--   drop            this attempt, or a later one, has ended
local now = now_ms()
local token, id, attempt, lease = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local deadline, life, message = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local locked = #ARGV >= 13
local fate = ARGV[locked and 14 or 8]

-- A message that will never run must not keep others waiting. But a later attempt of its task may
-- wait, or have its lock kept for it.
local function give_up_place()
  if locked and redis.call('HGET', KEYS[5], 'a:' .. id) == ARGV[3] then
    redis.call('ZREM', KEYS[4], id)
    redis.call('HDEL', KEYS[5], 'm:' .. id, 'a:' .. id, 'd:' .. id)
    redis.call('ZADD', KEYS[6], now, ARGV[8])
  end
end

local function give_up_lock()
  local l = locked and redis.call('HMGET', KEYS[3], 'task', 'state', 'ended') or {}
  if l[1] == id and l[2] == 'queued' and not (l[3] and tonumber(l[3]) >= attempt) then
    redis.call('DEL', KEYS[3])
    redis.call('ZADD', KEYS[6], now, ARGV[8])
  end
end

if deadline > 0 and now > deadline then
  -- The record of an earlier copy may be gone by now, so this one may have run already.
  give_up_place()
  give_up_lock()
  return {'old', ''}
end

-- Mostly none of these keys exists, so one command is enough.
local there = not locked or redis.call('EXISTS', KEYS[1], KEYS[3], KEYS[4]) > 0

local function look(...)
  return there and redis.call(...)
end

local g = look('HMGET', KEYS[1], 'state', 'attempt', 'token', 'until', 'standby_attempt', 'verdict', 'by') or {}
if g[1] then
  local seen = tonumber(g[2])
  if attempt == seen and g[1] == 'refused' then
    -- The same copy gets the same answer, because the first one may have been lost.
    return {g[3] == token and g[6] or 'refused', g[7]}
  end
  if attempt < seen or (attempt == seen and g[1] == 'done') then
    give_up_place()
    return {'drop', ''}
  end
  if g[1] == 'running' and g[3] ~= token and tonumber(g[4]) > now then
    if message == '' then
      return {'encode', ''}
    end
    if not g[5] or attempt > tonumber(g[5]) then
      redis.call('HSET', KEYS[1], 'standby', message, 'standby_attempt', attempt)
      redis.call('HDEL', KEYS[1], 'tries', 'resend')
    end
    redis.call('ZADD', KEYS[2], g[4], id)
    return {'standby', ''}
  end
end

local function remember(...)
  if g[1] then
    redis.call('DEL', KEYS[1])
    redis.call('ZREM', KEYS[2], id)
  end
  redis.call('HSET', KEYS[1], 'attempt', attempt, 'token', token, ...)
  -- At least two leases, because a renewal extends the record, and the standby is part of it.
  redis.call('PEXPIREAT', KEYS[1], math.max(deadline > 0 and deadline or now + life, now + 2 * lease))
end

local function go(number)
  remember('state', 'running', 'until', now + lease)
  return {'run', number, fate and try_to_record(KEYS[#KEYS - 3], {unpack(KEYS, #KEYS - 2)}, now, fate) or ''}
end

if not locked then
  return go('')
end

local function next_number()
  return (select(2, next_fences(KEYS[7], 1)))
end

local key = ARGV[8]
-- This write needs no memory. A server without memory takes the writes of a script after its first
-- one.
redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', now - tonumber(ARGV[12]))

-- The state is refused, not done, because the caller has yet to store the result of the refusal.
local function refuse(verdict, by)
  if ARGV[9] ~= 'try' then
    remember('state', 'refused', 'verdict', verdict, 'by', by)
  end
  return {verdict, by}
end

local owner = look('HGET', KEYS[3], 'task')
local head = (look('ZRANGE', KEYS[4], 0, 0) or {})[1]
if owner ~= id and (owner or (head and head ~= id)) then
  if not owner then
    -- The waiters may have left the index, if no worker looked after them for a week.
    redis.call('ZADD', KEYS[6], now, key)
  end
  if ARGV[9] ~= 'wait' then
    return refuse('taken', owner or head)
  end
  if message == '' then
    return {'encode', ''}
  end
  if not redis.call('ZSCORE', KEYS[4], id) then
    local most = tonumber(ARGV[11])
    if most > 0 and redis.call('ZCARD', KEYS[4]) >= most then
      return refuse('full', owner or head)
    end
    -- Places come from the counter of the fences, so they stay in order for ever.
    redis.call('ZADD', KEYS[4], next_number(), id)
  end
  -- Every waiter has an end, because others wait behind it, and its queue may have no consumer any
  -- more.
  local limit, expires = deadline > 0 and deadline or now + life, tonumber(ARGV[13])
  if expires > 0 then
    limit = math.min(limit, expires)
  end
  redis.call('HSET', KEYS[5], 'm:' .. id, message, 'a:' .. id, attempt, 'd:' .. id, limit)
  if g[5] and attempt >= tonumber(g[5]) then
    -- The copy that stood by is parked here now. If it were in both places, it would be sent twice.
    redis.call('HDEL', KEYS[1], 'standby', 'standby_attempt', 'tries', 'resend')
    redis.call('ZREM', KEYS[2], id)
  end
  for _, waiting in ipairs({KEYS[4], KEYS[5]}) do
    local left = limit - now + tonumber(ARGV[12])
    if redis.call('PTTL', waiting) < left then
      redis.call('PEXPIRE', waiting, left)
    end
  end
  return {'parked', tostring(redis.call('ZRANK', KEYS[4], id))}
end

-- The lock is free, or kept for this task: since it was published, for its retry, by an earlier
-- copy that died, or because it is its turn.
if head then
  redis.call('ZREM', KEYS[4], id)
  redis.call('HDEL', KEYS[5], 'm:' .. id, 'a:' .. id, 'd:' .. id)
  if redis.call('EXISTS', KEYS[4]) == 0 then
    redis.call('DEL', KEYS[5])
  elseif head == id then
    redis.call('HDEL', KEYS[5], 'woken', 'tries', 'resend')
  end
end
local number = next_number()
if owner then
  redis.call('DEL', KEYS[3])
end
redis.call('HSET', KEYS[3], 'token', token, 'task', id, 'state', 'running', 'since', now, 'lease', lease,
  'fence', number, 'holder', ARGV[10])
redis.call('PEXPIRE', KEYS[3], lease)
redis.call('ZADD', KEYS[6], now + lease, key)
return go(number)
