-- needs now step
-- A step should be running, and nobody renews for it; or it waits, and the guard drops every copy of its message. At the
-- first look it is suspected, later it runs again or is dead.
-- KEYS[1] run  [2] steps  [3] results  [4] outbox  [5] gone
-- ARGV[1] step  [2] round  [3] token, '': it waits  [4] ms between suspicion and verdict, beside those between two signs
--     of its life  [5] deaths that a step may survive  [6] 1: it lives, and a later suspicion begins anew
-- returns lives | suspect | again put into the outbox under the next round | dead to be completed as FAILED | stale it moved on
local step = ARGV[1]
local s = step_at(KEYS[2], step)
local waiting = s.state == 'WAITING'
if redis.call('HGET', KEYS[1], 'state') ~= 'RUNNING' or s.round ~= tonumber(ARGV[2]) or waiting ~= (ARGV[3] == '')
  or not waiting and (s.state ~= 'RUNNING' or s.token ~= ARGV[3]) then
  return 'stale'
end
if ARGV[6] == '1' then
  s.suspect = nil
  put_step(KEYS[2], step, s)
  return 'lives'
end
local now = now_ms()
local patience = tonumber(ARGV[4]) + (waiting and 0 or s.beat)
if not s.suspect or now < s.suspect + patience then
  -- The parent of a child that died says so itself within moments, and knows better what is to become of it. And where
  -- the clock has leapt, or the machine was suspended, a lease has run out that is about to be renewed.
  s.suspect = s.suspect or now
  put_step(KEYS[2], step, s)
  return 'suspect'
end
s.deaths, s.suspect = s.deaths + 1, nil
if not waiting and s.again ~= '1' or s.deaths > tonumber(ARGV[5]) then
  put_step(KEYS[2], step, s)
  return 'dead'
end
-- Under another id: whoever may still come back with the old one has lost the step.
local round = s.round + 1
put_step(KEYS[2], step, {state = 'WAITING', round = round, deaths = s.deaths, started = s.started, worker = s.worker})
redis.call('HSET', KEYS[4], step, round .. '.0')
redis.call('PEXPIRE', KEYS[4], redis.call('HGET', KEYS[1], 'keep'))
return 'again'
