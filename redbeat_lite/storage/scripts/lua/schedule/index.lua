-- needs leads
-- Let the index of names have these, where they are stored, and else not, if this term still runs.
-- KEYS[1] leader  KEYS[2] due  KEYS[3] names
-- ARGV[1] token  ARGV[2] term  ARGV[3..] names, at most 1,000, which unpack() can take
-- returns {0} this term is over | {1}
if not leads(KEYS[1], ARGV[1], ARGV[2]) then
  return {0}
end
for n, score in ipairs(redis.call('ZMSCORE', KEYS[2], unpack(ARGV, 3))) do
  if score then
    redis.call('ZADD', KEYS[3], 0, ARGV[n + 2])
  else
    redis.call('ZREM', KEYS[3], ARGV[n + 2])
  end
end
return {1}
