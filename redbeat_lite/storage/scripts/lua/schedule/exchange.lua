-- needs leads
-- Store a field of a hash, if it is still as it was read; and send messages with that, if they can be sent.
-- KEYS[1] the hash  KEYS[2] leader  KEYS[3..] lists of the broker
-- ARGV[1] token, '' for who does not lead  ARGV[2] term  ARGV[3] field  ARGV[4] what was read, '' for none
-- ARGV[5] what to store  ARGV[6] ARGV[7] another field that is stored with it, and its value; then for each command:
--   'lpush' index-of-KEYS payload | 'pexpire' index-of-KEYS ms | 'publish' channel payload
-- returns {0} this term is over | {1} stored, also where it was before | {2} it was another
--       | {3, text} its messages were refused, because of this
if ARGV[1] ~= '' and not leads(KEYS[2], ARGV[1], ARGV[2]) then
  return {0}
end
local found = redis.call('HGET', KEYS[1], ARGV[3]) or ''
if found ~= ARGV[4] then
  return {found == ARGV[5] and 1 or 2}
end
for i = 8, #ARGV, 3 do
  local kind = ARGV[i] == 'lpush' and redis.call('TYPE', KEYS[tonumber(ARGV[i + 1])])['ok'] or 'none'
  if kind ~= 'list' and kind ~= 'none' then
    return {3, 'the queue is a ' .. kind .. ', not a list'}
  end
  local reply = ARGV[i] == 'publish' and redis.pcall('PUBLISH', ARGV[i + 1], ARGV[i + 2])
  if type(reply) == 'table' then
    return {3, reply['err']}
  end
end
-- Written first: a server that takes no writes says so before anything is out.
redis.call('HSET', KEYS[1], ARGV[3], ARGV[5], ARGV[6], ARGV[7])
for i = 8, #ARGV, 3 do
  if ARGV[i] ~= 'publish' then
    redis.call(ARGV[i], KEYS[tonumber(ARGV[i + 1])], ARGV[i + 2])
  end
end
return {1}
