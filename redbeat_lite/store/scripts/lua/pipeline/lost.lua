-- needs now step
-- A step should be running, and nobody renews for it; or it waits, and the guard drops every copy of its message. At the
-- first look it is suspected, later it runs again or is dead.
-- KEYS: run steps outbox
-- ARGS: step round token patience_ms deaths lives
--   token: '': it waits   patience_ms: between suspicion and verdict, beside those between two signs of its life
--   deaths: that a step may survive   lives: 1: it lives, and a later suspicion begins anew
-- returns lives | suspect | again put into the outbox under the next round | dead to be completed as FAILED | stale it moved on
local s = step_at(step)
local waiting = s.state == 'WAITING'
if redis.call('HGET', run, 'state') ~= 'RUNNING' or s.round ~= tonumber(round) or waiting ~= (token == '')
  or not waiting and (s.state ~= 'RUNNING' or s.token ~= token) then
  return 'stale'
end
if lives == '1' then
  s.suspect = nil
  put_step(step, s)
  return 'lives'
end
local now = now_ms()
local patience = tonumber(patience_ms) + (waiting and 0 or s.beat)
if not s.suspect or now < s.suspect + patience then
  -- The parent of a child that died says so itself within moments, and knows better what is to become of it. And where
  -- the clock has leapt, or the machine was suspended, a lease has run out that is about to be renewed.
  s.suspect = s.suspect or now
  put_step(step, s)
  return 'suspect'
end
s.deaths, s.suspect = s.deaths + 1, nil
if not waiting and s.again ~= '1' or s.deaths > tonumber(deaths) then
  put_step(step, s)
  return 'dead'
end
-- Under another id: whoever may still come back with the old one has lost the step.
local next_round = s.round + 1
put_step(step, {state = 'WAITING', round = next_round, deaths = s.deaths, started = s.started, worker = s.worker})
redis.call('HSET', outbox, step, next_round .. '.0')
redis.call('PEXPIRE', outbox, redis.call('HGET', run, 'keep'))
return 'again'
