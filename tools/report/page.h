// SPDX-License-Identifier: Apache-2.0
// A report as one HTML file that needs nothing else: no scripts, no fonts, no network. It is built
// from top to bottom by the calls below; all text is escaped. It follows the reader's light or dark
// mode, prints in black on white, and folds to one column on a narrow screen.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace oktopk {

// The first column is aligned left, the others right. Rows may differ in length.
struct Table {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
  std::string caption;
  int highlight = -1;  // the row to emphasise
};

class Page {
 public:
  explicit Page(std::string title, std::string subtitle = "");

  void heading(const std::string& text);
  void paragraph(const std::string& text);
  // Key numbers, each with what it is: {"12.4x", "less traffic than dense"}.
  void figures(const std::vector<std::pair<std::string, std::string>>& numbers);
  void table(const Table& table);
  // From to_svg(); two per row where there is room.
  void plots(const std::vector<std::string>& svgs);
  void code(const std::string& text);  // commands, as they are typed

  std::string html() const;

 private:
  std::string title_, subtitle_, body_;
};

// UsageError if the file cannot be written.
void write_page(const std::string& file, const Page& page);

}  // namespace oktopk
