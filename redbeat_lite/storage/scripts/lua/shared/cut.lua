-- For the scripts that read texts: anybody may have written one of any length, and nobody has to be sent all of it.
-- takes the reply of HMGET and the bytes that are of any use; returns the reply, cut in place
local function all_cut(texts, most)
  for i = 1, #texts do
    if texts[i] and #texts[i] > most then
      texts[i] = string.sub(texts[i], 1, most)
    end
  end
  return texts
end
