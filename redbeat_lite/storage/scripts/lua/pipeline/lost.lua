-- needs now
-- A step should be running, and nobody renews for it; or it waits, and the guard drops every copy of its message. At the
-- first look it is suspected, later it runs again or is dead.
-- KEYS[1] run  [2] steps  [3] outbox
-- ARGV[1] step  [2] round  [3] token, '': it waits  [4] ms between suspicion and verdict, beside those between two signs
--     of its life  [5] deaths that a step may survive
-- returns suspect | again put into the outbox under the next round | dead to be completed as FAILED | stale it moved on
local step = ARGV[1]
local s = redis.call('HMGET', KEYS[2], step .. ':state', step .. ':round', step .. ':token', step .. ':again',
  step .. ':deaths', step .. ':suspect', step .. ':beat')
local waiting = not s[1] or s[1] == 'WAITING'
if redis.call('HGET', KEYS[1], 'state') ~= 'RUNNING' or (s[2] or '0') ~= ARGV[2] or waiting ~= (ARGV[3] == '')
  or not waiting and (s[1] ~= 'RUNNING' or s[3] ~= ARGV[3]) then
  return 'stale'
end
local now = now_ms()
local patience = tonumber(ARGV[4]) + (waiting and 0 or tonumber(s[7]))
if not s[6] or now < tonumber(s[6]) + patience then
  -- The parent of a child that died says so itself within moments, and knows better what is to become of it. And where
  -- the clock has leapt, or the machine was suspended, a lease has run out that is about to be renewed.
  redis.call('HSETNX', KEYS[2], step .. ':suspect', now)
  return 'suspect'
end
local deaths = tonumber(s[5] or '0') + 1
redis.call('HSET', KEYS[2], step .. ':deaths', deaths)
redis.call('HDEL', KEYS[2], step .. ':suspect')
if not waiting and s[4] ~= '1' or deaths > tonumber(ARGV[5]) then
  return 'dead'
end
-- Under another id: whoever may still come back with the old one has lost the step.
local round = tonumber(ARGV[2]) + 1
redis.call('HSET', KEYS[2], step .. ':state', 'WAITING', step .. ':round', round, step .. ':attempt', 0,
  step .. ':tries', 0)
redis.call('HDEL', KEYS[2], step .. ':token', step .. ':due')
redis.call('HSET', KEYS[3], step, round .. '.0')
redis.call('PEXPIRE', KEYS[3], redis.call('HGET', KEYS[1], 'keep'))
return 'again'
